"""How does the tree of commands become a completion script of bash, zsh or fish?

Commands, options and fixed choices stand in the script, so that a Tab for them starts nothing. For what only the daemon
knows (ids, models) the script runs `homebox completion words`. Pure text; it knows no daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from homebox.cli.tree import Argument, Command, Option

FILES = "files"
_NOT_COMPLETED = "-"
_FILE_NAMES = ("FILE", "FILE|-", "DIR", "FOLDER", "PATH", "ARCHIVE")


def fills(command: Command, what: Option | Argument) -> str:
    """With what a value is completed: `files`, `chats`, `deleted`, `streams`, `models`, `=one other`, or nothing."""
    if what.choices:
        return "=" + " ".join(what.choices)
    name = what.takes if isinstance(what, Option) else what.name
    if name in _FILE_NAMES:
        return FILES
    names = what.names if isinstance(what, Option) else (command.path[0],)
    return {
        ("--chat", "ID"): "chats",
        ("--attach", "ID"): "streams",
        ("--model", "NAME"): "models",
        ("chats", "ID"): "deleted" if command.path[-1] == "restore" else "chats",
        ("streams", "ID"): "streams",
        ("models", "NAME"): "models",
    }.get((names[-1], name), "")


def bash(root: Command) -> str:
    """A script to source, or to put where bash-completion finds it."""
    know: list[str] = []
    takes: list[str] = []
    for each in root.all():
        flags = " ".join(name for option in each.options for name in option.names)
        subs = " ".join(sub.path[-1] for sub in each.commands)
        know.append(
            f"  {_quoted(_at(each))}) subs={_quoted(subs)} flags={_quoted(flags)} fills={_quoted(_own(each))} ;;"
        )
        takes += _takes(each)
    return _BASH.replace("@KNOW@", "\n".join(know)).replace("@TAKES@", "\n".join(takes))


def zsh(root: Command) -> str:
    """A file `_homebox` for a directory of `fpath`; it may be sourced, too."""
    know: list[str] = []
    takes: list[str] = []
    for each in root.all():
        flags = " ".join(
            _quoted(f"{name}:{option.about}") for option in each.options for name in option.names
        )
        subs = " ".join(_quoted(f"{sub.path[-1]}:{sub.about}") for sub in each.commands)
        know.append(f"  {_quoted(_at(each))}) subs=({subs}) flags=({flags}) fills={_quoted(_own(each))} ;;")
        takes += _takes(each)
    return _ZSH.replace("@KNOW@", "\n".join(know)).replace("@TAKES@", "\n".join(takes))


def fish(root: Command) -> str:
    """A file `homebox.fish` for fish's directory of completions."""
    lines = []
    for each in root.all():
        here = f"complete -c homebox -n {_quoted('__homebox_at ' + _quoted(_at(each)))}"
        lines += [f"{here} -a {sub.path[-1]} -d {_quoted(sub.about)}" for sub in each.commands]
        for option in each.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" {_fish_value(fills(each, option), True)}" if option.takes else ""
            lines.append(f"{here} {names}{value} -d {_quoted(option.about)}")
        if own := _own(each):
            lines.append(f"{here} {_fish_value(own, False)}")
    commands = " ".join(_quoted(_at(each)) for each in root.all() if each.path)
    takes = " ".join(
        _quoted(f"{_at(each)} {name}".strip())
        for each in root.all()
        for option in each.options
        for name in option.names
        if option.takes
    )
    script = _FISH.replace("@COMMANDS@", commands).replace("@TAKES@", takes)
    return script + "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[Command], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _at(command: Command) -> str:
    return " ".join(command.path)


def _own(command: Command) -> str:
    """With what the words of a command are completed."""
    return next((found for each in command.arguments if (found := fills(command, each))), "")


def _takes(command: Command) -> Iterable[str]:
    for option in command.options:
        if option.takes:
            where = "|".join(_quoted(f"{_at(command)} {name}") for name in option.names)
            yield f"  {where}) takes={_quoted(fills(command, option) or _NOT_COMPLETED)} ;;"


def _fish_value(kind: str, option: bool) -> str:
    if kind == FILES:
        return "-r -F" if option else "-F"
    what = (
        kind[1:] if kind.startswith("=") else f"(homebox completion words {kind} 2>/dev/null)" if kind else ""
    )
    given = f" -a {_quoted(what)}" if what else ""
    return ("-x" if option else "") + given


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_BASH = r"""# Completion of homebox for bash. Made by: homebox completion show bash

# What there is at a command: its commands, its options, what its words are.
_homebox_know() {
  case $1 in
@KNOW@
  esac
}

# What an option of a command takes; nothing for a flag.
_homebox_takes() {
  case "$1 $2" in
@TAKES@
  *) takes= ;;
  esac
}

_homebox_fill() {
  local word
  case $1 in
  files) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
  =*) mapfile -t COMPREPLY < <(compgen -W "${1#=}" -- "$cur") ;;
  chats | deleted | streams | models)
    while IFS=$'\t' read -r word _; do
      COMPREPLY+=("$word")
    done < <("${COMP_WORDS[0]/#\~/$HOME}" completion words "$1" "$cur" 2>/dev/null) ;;
  esac
}

_homebox() {
  local cur=${COMP_WORDS[COMP_CWORD]} at= subs= flags= fills= takes= word words_only= i
  COMPREPLY=()
  _homebox_know ''
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -n $takes ]]; then
      [[ $word == = ]] || takes=
    elif [[ $word == -- ]]; then
      words_only=1
    elif [[ $word == -* && -z $words_only ]]; then
      _homebox_takes "$at" "$word"
    elif [[ " $subs " == *" $word "* ]]; then
      at="${at:+$at }$word"
      _homebox_know "$at"
    fi
  done
  [[ $cur == = ]] && cur=
  if [[ -n $takes ]]; then
    _homebox_fill "$takes"
  elif [[ $cur == -* && -z $words_only ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
  elif [[ -n $subs ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$subs" -- "$cur")
  else
    _homebox_fill "$fills"
  fi
}

complete -F _homebox homebox
"""

_ZSH = r"""#compdef homebox
# Completion of homebox for zsh. Made by: homebox completion show zsh

# What there is at a command: its commands, its options, what its words are.
_homebox_know() {
  case $1 in
@KNOW@
  esac
}

# What an option of a command takes; nothing for a flag.
_homebox_takes() {
  case "$1 $2" in
@TAKES@
  *) takes= ;;
  esac
}

_homebox_fill() {
  local line
  local -a found
  case $1 in
  files) _files ;;
  '='*) found=(${=1#=}); compadd -a found ;;
  chats | deleted | streams | models)
    for line in "${(@f)$(${(e)words[1]/#\~/$HOME} completion words $1 2>/dev/null)}"; do
      [[ -n $line ]] && found+=("${line/$'\t'/:}")
    done
    _describe $1 found ;;
  esac
}

_homebox() {
  local at= fills= takes= word words_only= cur=$words[CURRENT]
  local -a subs flags
  integer i
  _homebox_know ''
  for ((i = 2; i < CURRENT; i++)); do
    word=$words[i]
    if [[ -n $takes ]]; then
      takes=
    elif [[ $word == -- ]]; then
      words_only=1
    elif [[ $word == -*=* ]]; then
      continue
    elif [[ $word == -* && -z $words_only ]]; then
      _homebox_takes "$at" "$word"
    elif (( ${subs[(I)$word:*]} )); then
      at="${at:+$at }$word"
      _homebox_know "$at"
    fi
  done
  if [[ -n $takes ]]; then
    _homebox_fill "$takes"
  elif [[ $cur == --*=* ]]; then
    _homebox_takes "$at" "${cur%%=*}"
    compset -P '*='
    _homebox_fill "$takes"
  elif [[ $cur == -* && -z $words_only ]]; then
    _describe -o option flags
  elif (( $#subs )); then
    _describe command subs
  else
    _homebox_fill "$fills"
  fi
}

if [[ $funcstack[1] == _homebox ]]; then
  _homebox "$@"
else
  compdef _homebox homebox
fi
"""

_FISH = r"""# Completion of homebox for fish. Made by: homebox completion show fish

set -g __homebox_commands @COMMANDS@
set -g __homebox_takes @TAKES@

# Whether what stands before the cursor is this command.
function __homebox_at
    set -l at
    set -l value 0
    for word in (commandline -opc)[2..]
        if test $value = 1
            set value 0
        else if string match -q -- '-*' $word
            contains -- (string join -- ' ' $at $word) $__homebox_takes
            and set value 1
        else if contains -- (string join -- ' ' $at $word) $__homebox_commands
            set -a at $word
        end
    end
    test "$at" = "$argv[1]"
end

complete -c homebox -f
"""
