"""How does an answer look while it is being written, and ever after?

`scanner` finds the blocks of a growing text, `inline` the emphasis inside a line, `wrap` the places to break it; `prose`,
`fence` and `table` lay a block out in rows, `document` keeps them all for one width; `lines` is the widget that draws
rows, `view` and `thoughts` are what a conversation is made of. Only the last three know textual.
"""
