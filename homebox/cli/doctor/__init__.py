"""What is wrong with this box, and what is to be done about it? `command` runs the checks of the other files, each a
small function from what was `seen` to one `Finding`; none changes anything, none loads anything heavy."""
