# Bash completion for portcullis: `source <(portcullis completion bash)`.
# The program itself knows what could stand where the cursor is.

_portcullis() {
    local IFS=$'\n' word line joined= words=() lines=()
    local program=${COMP_WORDS[0]/#\~\//$HOME/}
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        # Bash takes words apart at `=` and `:`, which options and addresses contain.
        if [[ ${#words[@]} -gt 0 && ( -n $joined || $word == [=:]* ) ]]; then
            words[${#words[@]}-1]+=$word
        else
            words[${#words[@]}]=$word
        fi
        joined=
        [[ $word == [=:]* ]] && joined=yes
    done
    COMPREPLY=()
    lines=($("$program" __complete -- "${words[@]}" 2>/dev/null </dev/null))
    for line in "${lines[@]}"; do
        case $line in
            # Bash completes the name of a file where there is no other candidate.
            :0) ;;
            :4) compopt +o default 2>/dev/null ;;
            # What stands behind the tab is a description.
            *) COMPREPLY[${#COMPREPLY[@]}]=${line%%$'\t'*} ;;
        esac
    done
}

complete -o default -F _portcullis portcullis
