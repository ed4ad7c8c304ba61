#!/bin/sh
# sglang-stock: prints what a node keeps of the toolkit, with owners, sizes and ages, and changes
# nothing on it. What is collected is decided elsewhere, from this alone.
#
# Takes words of the form key=value. Prints "sglang-stock 1", then a line for each thing, its
# fields between tabs, and "end" as the last line. A time is in seconds since 1970 on the node's
# clock, a size in bytes; an empty field was not to be read.
#
# Must run under dash, busybox ash and bash. Comments on lines of their own do not travel to the
# node, nor does indentation.
set -u
LC_ALL=C
PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH

deployments='' launch='' doors='' environments='' pythons='' tools='' caches='' packages='' account=''
for word in "$@"; do
    value=${word#*=}
    case $word in
        deployments=*) deployments=$value ;;
        launch=*) launch=$value ;;
        doors=*) doors=$value ;;
        environments=*) environments=$value ;;
        pythons=*) pythons=$value ;;
        tools=*) tools=$value ;;
        caches=*) caches=$value ;;
        packages=*) packages=$value ;;
        account=*) account=$value ;;
    esac
done

T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
trap 'exit 143' HUP INT TERM PIPE

line() {
    printf '%s' "$1"
    shift
    for field in "$@"; do
        printf '\t%s' "$field"
    done
    echo
}

# A name that no program of the toolkit gave is not printed: its directory is.
odd() {
    case ${1##*/} in
        *[!A-Za-z0-9._+-]*)
            line odd "${1%/*}"
            return 0
            ;;
    esac
    return 1
}

# Prints what stands in a file as NAME="VALUE".
setting() {
    sed -n "s/^$1=\"\(.*\)\"\$/\1/p" "$2" 2>/dev/null | tail -n 1
}

bytes() {
    kib=$(du -sk -- "$1" 2>/dev/null | cut -f1)
    [ -z "$kib" ] || echo $((kib * 1024))
}

# Prints when the newest file in a directory was changed, or the directory itself.
newest() {
    { stat -c %Y -- "$1"; find "$1" -type f -exec stat -c %Y -- {} +; } 2>/dev/null \
        | sort -n | tail -n 1
}

owner_and_mode() {
    stat -c '%u %a' -- "$1" 2>/dev/null
}

# thing KIND PATH LAST FIELDS...: a directory or a file, with its owner, mode, age and size.
thing() {
    kind=$1 path=$2 last=$3
    shift 3
    seen=$(owner_and_mode "$path")
    line "$kind" "$path" "${seen% *}" "${seen#* }" "$last" "$(bytes "$path")" "$@"
}

readable() {
    [ -r "$1" ] && [ -x "$1" ] && return
    line unread "$1"
    return 1
}

# ---- services and their deployments

# Prints the deployment that the main process of a service was started from: nothing where none
# runs, a question mark where that is not to be read.
runs_from() {
    command -v systemctl >/dev/null 2>&1 || { echo '?'; return; }
    pid=$(systemctl show --property=MainPID --value "sglang@$1.service" 2>/dev/null) || { echo '?'; return; }
    [ "${pid:-0}" != 0 ] || return 0
    number=$(tr '\000' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^SGLANG_DEPLOYMENT=//p' | head -n 1)
    echo "${number:-?}"
}

one_deployment() {
    made=$(stat -c %Y -- "$2/plan.json" 2>/dev/null)
    served=0
    for file in start.json record.json; do
        [ ! -f "$2/$file" ] || served=1
    done
    # One that answered and then did not stand its upgrade is none to go back to.
    if [ -r "$2/record.json" ] && tr -d ' \t\r\n' <"$2/record.json" | grep -qF '"upgrade":"failed"'; then
        served=0
    fi
    there=0
    if [ -r "$2/$launch" ]; then
        there=1
        setting SGLANG_IMAGE "$2/$launch" >>"$T/images"
        kernels=$(setting SGLANG_KERNELS "$2/$launch")
        [ -z "$kernels" ] || echo "${kernels%/*}" >>"$T/caches"
    fi
    line deployment "$1" "${2##*/}" "$made" "$(newest "$2")" "$served" "$there" \
        "$(setting SGLANG_IMAGE "$2/$launch")" "$(setting SGLANG_ENVIRONMENT "$2/$launch")" \
        "$(setting SGLANG_KERNELS "$2/$launch")" "$(bytes "$2")"
}

# link_of DIRECTORY current|previous. A switch that was cut between its two renames has left the
# second one's new link alone (templates/links.sh).
link_of() {
    link=$1/$2
    if [ "$2" = previous ] && [ -L "$1/.previous" ] && [ ! -L "$1/.current" ] \
        && [ "$(readlink "$1/.previous")" != "$(readlink "$1/current")" ]; then
        link=$1/.previous
    fi
    number=$(readlink "$link") || return 0
    echo "${number##*/}"
}

services() {
    readable "$deployments" || return
    for directory in "$deployments"/*/; do
        directory=${directory%/}
        [ -d "$directory" ] && [ ! -L "$directory" ] || continue
        odd "$directory" && continue
        readable "$directory" || continue
        name=${directory##*/}
        line service "$name" "$(link_of "$directory" current)" "$(link_of "$directory" previous)" \
            "$(runs_from "$name")"
        for path in "$directory"/*/; do
            path=${path%/}
            [ -d "$path" ] && [ ! -L "$path" ] || continue
            odd "$path" && continue
            case ${path##*/} in
                *[!0-9]*.new | *[!0-9]*.gone) line odd "$directory" ;;
                *.new | *.gone) thing half "$path" "$(newest "$path")" ;;
                *[!0-9]*) line odd "$directory" ;;
                *) one_deployment "$name" "$path" ;;
            esac
        done
    done
}

# ---- the door: what it runs from

door() {
    readable "$doors" || return
    for path in "$doors"/*/door.env; do
        [ -e "$path" ] || continue
        [ -r "$path" ] || { line unread "$path"; continue; }
        line door "$(setting SGLANG_ENVIRONMENT "$path")"
    done
}

# ---- what deployments need

environments() {
    readable "$environments" || return
    for path in "$environments"/*/; do
        path=${path%/}
        [ -d "$path" ] && [ ! -L "$path" ] || continue
        odd "$path" && continue
        marked=0
        [ ! -f "$path/environment.json" ] || marked=1
        # Its packages are older than it is.
        thing environment "$path" "$(stat -c %Y -- "$path/environment.json" "$path" 2>/dev/null | sort -n | tail -n 1)" \
            "$marked" "$(readlink -f "$path/bin/python3" 2>/dev/null)"
    done
}

pythons() {
    readable "$pythons" || return
    for path in "$pythons"/*/; do
        path=${path%/}
        [ -d "$path" ] && [ ! -L "$path" ] || continue
        odd "$path" || thing python "$path" "$(stat -c %Z -- "$path" 2>/dev/null)"
    done
}

tools() {
    readable "$tools" || return
    for path in "$tools"/*; do
        [ -f "$path" ] && [ ! -L "$path" ] || continue
        odd "$path" || thing tool "$path" "$(stat -c %Z -- "$path" 2>/dev/null)"
    done
}

# A compiler of torch's extensions makes a file `lock` and waits while there is one: that of a
# compiler which died is waited for by every later one. Others use flock(2), which ends with its
# process, and their files do no harm.
locks() {
    find "$1" -type f -name lock 2>/dev/null | while read -r path; do
        case $path in *[!A-Za-z0-9._/+@:=,-]*) continue ;; esac
        held=0
        ! grep -qF -- " -> $path" "$T/open" || held=1
        line lock "$path" "$(stat -c %Y -- "$path" 2>/dev/null)" "$held"
    done
}

caches() {
    { echo "$caches"; cat "$T/caches" 2>/dev/null; } | sort -u >"$T/roots"
    # A shell that has them all open at once would be slow: one listing tells it for all locks.
    ls -l /proc/[0-9]*/fd >"$T/open" 2>/dev/null
    while read -r root; do
        [ -d "$root" ] || continue
        readable "$root" || continue
        for path in "$root"/*/ "$root"/.canary.*/; do
            path=${path%/}
            [ -d "$path" ] && [ ! -L "$path" ] && [ "$path" != "$packages" ] || continue
            odd "$path" && continue
            case ${path##*/} in
                .canary.*) thing half "$path" "$(newest "$path")" ;;
                *)
                    thing cache "$path" "$(newest "$path")"
                    locks "$path"
                    ;;
            esac
        done
    done <"$T/roots"
}

# Of images those alone that a deployment names.
images() {
    [ -s "$T/images" ] || return
    command -v docker >/dev/null 2>&1 || { line unread docker; return; }
    docker ps -aq --no-trunc >"$T/containers" 2>/dev/null || { line unread docker; return; }
    # shellcheck disable=SC2046 # many ids
    [ ! -s "$T/containers" ] || docker inspect --type container --format '{{.Image}}' $(cat "$T/containers") >"$T/used" 2>/dev/null
    sort -u "$T/images" | while read -r image; do
        [ -n "$image" ] || continue
        told=$(docker image inspect --format '{{.Id}} {{.Size}} {{json .RepoTags}}' "$image" 2>/dev/null) || continue
        echo "$told" | {
            read -r id size tags
            tags=$(echo "$tags" | tr -d '[]" ')
            [ "$tags" != null ] || tags=''
            line image "$image" "$id" "$size" "$(grep -cxF -- "$id" "$T/used" 2>/dev/null)" "$tags"
        }
    done
}

echo 'sglang-stock 1'
line now "$(date +%s)"
line user "$(id -u)" "$(id -u "$account" 2>/dev/null)"
[ ! -e "$deployments" ] || services
[ ! -e "$doors" ] || door
[ ! -e "$environments" ] || environments
[ ! -e "$pythons" ] || pythons
[ ! -e "$tools" ] || tools
caches
images
echo end
