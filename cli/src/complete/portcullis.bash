# Bash completion for portcullis: `source <(portcullis completion bash)`.
# The program itself knows what could stand where the cursor is.

_portcullis() {
    local IFS=$'\n' word line joined= before= words=() lines=()
    local program=${COMP_WORDS[0]/#\~\//$HOME/}
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        # Bash takes words apart at `=`, `:` and `@`, which options, addresses and contexts contain.
        if [[ ${#words[@]} -gt 0 && ( -n $joined || $word == [=:@]* ) ]]; then
            before=${words[${#words[@]}-1]}
            words[${#words[@]}-1]+=$word
        else
            before=
            words[${#words[@]}]=$word
        fi
        joined=
        if [[ $word == [=:@]* ]]; then
            joined=yes
            before=${words[${#words[@]}-1]}
        fi
    done
    # It replaces only what stands behind the last `=` or `:`, or from the last `@` on. The rest of a candidate is there already.
    before=${before%@}
    [[ $before == -*=* ]] && before=${before#*=}
    COMPREPLY=()
    lines=($("$program" __complete -- "${words[@]}" 2>/dev/null </dev/null))
    for line in "${lines[@]}"; do
        case $line in
            # Bash completes the name of a file where there is no other candidate.
            :0) ;;
            :4) compopt +o default 2>/dev/null ;;
            # What stands behind the tab is a description.
            *)
                line=${line%%$'\t'*}
                COMPREPLY[${#COMPREPLY[@]}]=${line#"$before"}
                ;;
        esac
    done
}

complete -o default -F _portcullis portcullis
