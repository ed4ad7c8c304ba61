# Directories from which code is loaded: root's alone, checked before they are used.

# ours PATH: ends with a refusal where PATH is another's, or others may write to it.
ours() {
    seen_=$(stat -Lc '%u %a' -- "$1") || refuse CACHE_NOT_OURS "$1 cannot be looked at"
    case $seen_ in
    '0 '*[2367]? | '0 '*[2367])
        refuse CACHE_NOT_OURS "$1 may be written by others (mode ${seen_#0 })|chmod go-w $1" ;;
    '0 '*) ;;
    *) refuse CACHE_NOT_OURS "$1 belongs to user ${seen_% *}|chown -R root:root $1 && chmod -R go-w $1" ;;
    esac
}

# own ROOT DIRECTORY: makes DIRECTORY below ROOT, which only root may enter.
own() {
    ( umask 022 && mkdir -p -- "$1" ) || refuse CACHE_NOT_OURS "$1 could not be made"
    ours "$1"
    if [ -e "$2" ] || [ -L "$2" ]; then
        ours "$2"
    else
        mkdir -m 0700 -- "$2" || refuse CACHE_NOT_OURS "$2 could not be made"
    fi
    chmod 0700 -- "$2"
    ( umask 077 && mkdir -p -- "$2/home" )
}
