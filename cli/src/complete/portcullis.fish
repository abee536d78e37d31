# Fish completion for portcullis: this file, as ~/.config/fish/completions/portcullis.fish.
# The program itself knows what could stand where the cursor is.

function __portcullis_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -l lines ($program __complete -- $words[2..-1] "$current" 2>/dev/null </dev/null)
    # In `--option=value`, candidates are for the value.
    set -l option (string match -r -- '^-.*?=' "$current")
    if test "$lines[-1]" = :0
        set -l value (string replace -- "$option" "" "$current")
        set lines (__fish_complete_path "$value")
    else
        set -e lines[-1]
    end
    for line in $lines
        printf '%s%s\n' "$option" "$line"
    end
end

complete -c portcullis -f -k -a '(__portcullis_complete)'
