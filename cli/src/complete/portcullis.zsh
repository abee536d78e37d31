#compdef portcullis
# Zsh completion for portcullis: this file, as `_portcullis` in a folder of `fpath`, or `source <(portcullis completion zsh)`.
# The program itself knows what could stand where the cursor is.

_portcullis() {
    local program=${(Q)words[1]} line
    local -a lines candidates
    program=${program/#\~\//$HOME/}
    lines=("${(@f)$("$program" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)}")
    # In `--option=value`, candidates are for the value.
    [[ $PREFIX == -*=* ]] && compset -P 1 '*='
    if [[ ${lines[-1]} == :0 ]]; then
        _files
        return
    fi
    for line in "${(@)lines[1,-2]}"; do
        # What stands behind the tab is a description, which `_describe` wants behind a colon.
        candidates+=("${${line//:/\\:}/$'\t'/:}")
    done
    (( ${#candidates} )) && _describe -V portcullis candidates
}

if [[ ${funcstack[1]} == _portcullis ]]; then
    _portcullis "$@"
else
    compdef _portcullis portcullis
fi
