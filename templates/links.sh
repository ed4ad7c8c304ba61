# The two links of a service, `current` and `previous`, each renamed into its place.

# end_switch DEPLOYMENTS: a switch makes .current and .previous first, then renames them in that
# order. Where .previous alone is left it was cut in between, unless it leads to the current one:
# then it is of a version that made them one after the other, and was cut before any rename.
end_switch() {
    [ -L "$1/.previous" ] && [ ! -L "$1/.current" ] || return 0
    if [ "$(readlink "$1/.previous")" = "$(readlink "$1/current")" ]; then
        rm -f -- "$1/.previous"
    else
        mv -fT "$1/.previous" "$1/previous"
    fi
}

# on_disk PATH...: what they hold is on the disk, not in memory alone. Links among them are left out.
on_disk() {
    for path_ in "$@"; do
        [ ! -L "$path_" ] && [ -e "$path_" ] || continue
        sync -- "$path_" || return 1
    done
}
