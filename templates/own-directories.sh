# Directories from which code is loaded: of the user who runs it alone, checked before use.

# ours PATH [OWNER_ID]: ends with a refusal where PATH is another's, or others may write to it.
ours() {
    seen_=$(stat -Lc '%u %a' -- "$1") || refuse CACHE_NOT_OURS "$1 cannot be looked at"
    case $seen_ in
    "${2:-0} "*[2367]? | "${2:-0} "*[2367])
        refuse CACHE_NOT_OURS "$1 may be written by others (mode ${seen_#* })|chmod go-w $1" ;;
    "${2:-0} "*) ;;
    *) refuse CACHE_NOT_OURS "$1 belongs to user ${seen_% *}|chown -R ${2:-root}:${2:-root} $1 && chmod -R go-w $1" ;;
    esac
}

unmade() {
    ! command -v full_refused >/dev/null || ! full_refused "$1" || exit 75
    refuse CACHE_NOT_OURS "$1 could not be made"
}

# own ROOT DIRECTORY [USER]: makes DIRECTORY below ROOT, which only USER (root where none is
# named) may enter. ROOT is root's.
own() {
    ( umask 022 && mkdir -p -- "$1" ) || unmade "$1"
    ours "$1"
    owner_=0
    if [ -n "${3:-}" ]; then
        owner_=$(id -u -- "$3") || refuse CACHE_NOT_OURS "there is no user $3, whose $2 would be|apply again: it makes the user"
    fi
    if [ -e "$2" ] || [ -L "$2" ]; then
        # Of a run that was cut before it gave it away: nobody else could enter it meanwhile.
        [ "$owner_" = 0 ] || [ "$(stat -Lc '%u %a' -- "$2")" != '0 700' ] || chown -hR -- "$3:" "$2"
        ours "$2" "$owner_"
    else
        mkdir -m 0700 -- "$2" || unmade "$2"
        mkdir -m 0700 -- "$2/home"
        [ "$owner_" = 0 ] || chown -hR -- "$3:" "$2"
    fi
    # Inside of what is another's root touches nothing: a link there could lead anywhere.
    [ "$owner_" = 0 ] || return 0
    chmod 0700 -- "$2"
    ( umask 077 && mkdir -p -- "$2/home" )
}
