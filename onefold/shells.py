"""Scripts with which bash, zsh and fish complete ``onefold`` on TAB.

All words are in the scripts, so that a TAB starts no Python; only runs are looked for then.
"""

from collections.abc import Mapping, Sequence

from onefold.words import RUN_FOLDERS, RUNS, Word

FILES_TOO = ("--dataset", "--space")
"""Options that take a word or a file."""
SHARED = """\
_onefold_runs() {
    _onefold_dir=runs
    _onefold_was=
    for _onefold_word in "${COMP_WORDS[@]}"; do
        case $_onefold_was in --output-dir) _onefold_dir=$_onefold_word ;; esac
        case $_onefold_word in
            --output-dir=?*) _onefold_dir=${_onefold_word#*=} ;;
            =) continue ;;
        esac
        _onefold_was=$_onefold_word
    done
    for _onefold_word in $(command ls -1 "$_onefold_dir" 2>/dev/null); do
        if [ -e "$_onefold_dir/$_onefold_word/config.yaml" ]; then
            case $1 in
                RUNS) echo "$_onefold_word" ;;
                *) echo "$_onefold_dir/$_onefold_word" ;;
            esac
        fi
    done
}

# The last option before the word that is being typed.
_onefold_option() {
    _onefold_found=
    for _onefold_word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
        case $_onefold_word in -*) _onefold_found=${_onefold_word%%=*} ;; esac
    done
    echo "$_onefold_found"
}

# The options to offer while nothing of one is typed: of many only some.
_onefold_offer() {
    _onefold_found=$(_onefold_first "$1")
    echo "${_onefold_found:-$(_onefold_options "$1")}"
}

# What may follow: by the command, the word before, and what comes up to a = in the word itself.
_onefold_list() {
    _onefold_before=${3%=}
    if [ -z "$_onefold_before" ]; then
        _onefold_before=$2
        case " $(_onefold_flags "$1") " in *" $2 "*) _onefold_before= ;; esac
    fi
    case $_onefold_before in
        -*) _onefold_values "$1 $_onefold_before" ;;
        *)
            _onefold_found=$(_onefold_alone "$1")
            if [ -z "$_onefold_found" ]; then
                _onefold_found=$(_onefold_values "$1 $(_onefold_option)")
            fi
            echo "${_onefold_found:-$(_onefold_offer "$1")}"
            ;;
    esac
}

_onefold() {
    if [ -n "${ZSH_VERSION-}" ]; then emulate -L ksh; fi
    local word=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]}
    local before=${COMP_WORDS[COMP_CWORD - 1]} start='' list='' one=''
    COMPREPLY=()
    case $before in =) before=${COMP_WORDS[COMP_CWORD - 2]} ;; esac
    case $current in
        =) current='' ;; # bash takes it for a word of its own
        --*=*) start=${current%%=*}= && current=${current#*=} ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        list="WORDS --help --version"
    else
        case $current in
            - | --) list=$(_onefold_offer "$word") ;;
            -*) list=$(_onefold_options "$word") ;;
            *) list=$(_onefold_list "$word" "$before" "$start") ;;
        esac
    fi
    case $list in RUNS | RUN_FOLDERS) list=$(_onefold_runs "$list") ;; esac
    for one in $list; do
        case $one in "$current"*) COMPREPLY+=("$start$one") ;; esac
    done
}
"""
BASH = "complete -o bashdefault -o default -F _onefold onefold\n"
ZSH = """\
_onefold_zsh() {
    local -a COMP_WORDS COMPREPLY
    local COMP_CWORD=$((CURRENT - 1))
    COMP_WORDS=("${words[@]}")
    _onefold
    if ((${#COMPREPLY})); then compadd -a COMPREPLY; else _files; fi
}
if ! whence compdef >/dev/null; then autoload -Uz compinit && compinit; fi
compdef _onefold_zsh onefold
"""
FISH = """\
# Whether more than dashes is typed of an option: of many only some are offered before.
function __onefold_typed
    not string match -qr '^--?$' -- (commandline -ct)
end

function __onefold_runs
    set -l folder runs
    set -l tokens (commandline -opc)
    if set -l at (contains -i -- --output-dir $tokens)
        set folder $tokens[(math $at + 1)]
    end
    for file in $folder/*/config.yaml
        set -l run (dirname $file)
        if test $argv[1] = RUNS
            basename $run
        else
            echo $run
        end
    end
end
"""


def bash(words: Mapping[str, Word]) -> str:
    """The script for bash."""
    return _tables(words) + SHARED.replace("WORDS --", f"{' '.join(words)} --") + BASH


def zsh(words: Mapping[str, Word]) -> str:
    """The script for zsh: what bash's functions find, given to zsh."""
    return _tables(words) + SHARED.replace("WORDS --", f"{' '.join(words)} --") + ZSH


def fish(words: Mapping[str, Word]) -> str:
    """The script for fish, which asks for a line per option."""
    lines = [
        FISH,
        f"complete -c onefold -n __fish_use_subcommand -f -a '{' '.join(words)}'",
        "complete -c onefold -n __fish_use_subcommand -l help -l version",
    ]
    for name, word in words.items():
        here = f"complete -c onefold -n '__fish_seen_subcommand_from {name}'"
        if word.alone:
            lines.append(f"{here} -f -a '{_in_fish(word.alone)}'")
        if word.first:
            lines.append(f"{here} -a '{' '.join(word.first)}'")
        later = f"{here[:-1]}; and __onefold_typed'"
        for option in word.options:
            values = word.values.get(option)
            taken = "" if option in word.flags else " -r"
            if values:
                files = "" if option in FILES_TOO else " -f"
                taken = f" -r{files} -a '{_in_fish(values)}'"
            when = later if word.first and option not in word.first else here
            lines.append(f"{when} -l {option.removeprefix('--')}{taken}")
    return "\n".join(lines) + "\n"


def _in_fish(values: Sequence[str]) -> str:
    runs = values in (RUNS, RUN_FOLDERS)
    return f"(__onefold_runs {values[0]})" if runs else " ".join(values)


def _tables(words: Mapping[str, Word]) -> str:
    """Functions that say a command's options, those that take no value, those to offer first,
    others' values, and what stands alone."""
    values = {
        f"{name} {option}": taken
        for name, word in words.items()
        for option, taken in word.values.items()
    }
    return "\n".join(
        [
            _table("_onefold_options", {name: word.options for name, word in words.items()}),
            _table("_onefold_flags", {name: word.flags for name, word in words.items()}),
            _table("_onefold_first", {name: word.first for name, word in words.items()}),
            _table("_onefold_alone", {name: word.alone for name, word in words.items()}),
            _table("_onefold_values", values),
        ]
    )


def _table(function: str, entries: Mapping[str, Sequence[str]]) -> str:
    keys: dict[tuple[str, ...], list[str]] = {}
    for key, found in entries.items():
        if found:
            keys.setdefault(tuple(found), []).append(f'"{key}"')
    cases = [f"    {' | '.join(at)}) echo '{' '.join(found)}' ;;" for found, at in keys.items()]
    return "\n".join([f"{function}() {{", '    case "$1" in', *cases, "    esac", "}", ""])
