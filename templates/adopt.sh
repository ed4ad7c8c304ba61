# Reads what serves SGLang on this node by hand, and changes nothing.
#
# Each line of its output is what it tells of and fields, those of free text in base64. Sent by
# plans/adopt/gathered.py, which reads it: argument lists and environments may hold secrets, so
# what is printed here is shown to nobody.
set -u
LC_ALL=C
DOCKER_CLI_HINTS=false
SYSTEMD_PAGER=
export LC_ALL DOCKER_CLI_HINTS SYSTEMD_PAGER
limit() { timeout -k 2 20 "$@"; }
packed() { base64 | tr -d '\n'; }
text() { printf ' %s' "$(printf '%s' "$1" | packed)"; }
ids=
units=

# Version of the package that a process runs, from the name of its folder beside the program.
version_of() {
    words=$(tr '\0' '\n' <"/proc/$1/cmdline" | head -n 2)
    path=$(tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | sed -n 's/^PATH=//p' | head -n 1)
    own=$(tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | sed -n 's/^VIRTUAL_ENV=//p' | head -n 1)
    prefixes=$(
        printf '%s\n' "$words" | sed -n 's|^\(/.*\)/bin/[^/]*$|\1|p'
        printf '%s\n' "$own"
        printf '%s\n' "$path" | tr ':' '\n' | sed -n 's|^\(/.*\)/bin/*$|\1|p'
        printf '%s\n' /usr/local /usr
    )
    printf '%s\n' "$prefixes" | while IFS= read -r prefix; do
        [ -n "$prefix" ] || continue
        for found in "/proc/$1/root$prefix"/lib/python3*/site-packages/sglang-[0-9]*.dist-info \
            "/proc/$1/root$prefix"/lib/python3*/dist-packages/sglang-[0-9]*.dist-info; do
            [ -d "$found" ] || continue
            found=${found##*/sglang-}
            printf '%s' "${found%.dist-info}"
            exit
        done
    done
}

processes() {
    for file in $(grep -las sglang /proc/[0-9]*/cmdline); do
        pid=${file#/proc/}
        pid=${pid%/cmdline}
        # What a server renames itself to is one of its workers.
        case $(tr '\0' ' ' <"$file" 2>/dev/null) in '' | sglang::*) continue ;; esac
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
        [ -n "$parent" ] || continue
        group=$(cat "/proc/$pid/cgroup" 2>/dev/null)
        id=$(printf '%s' "$group" | grep -oE '[0-9a-f]{64}' | head -n 1)
        unit=$(printf '%s' "$group" | sed -n 's|.*/\([^/]*\.service\)$|\1|p' | head -n 1)
        ids="$ids $id"
        units="$units $unit"
        printf 'process %s %s %s' "$pid" "$parent" "${id:-${unit:--}}"
        printf ' %s' "$(packed <"$file")"
        printf ' %s' "$(packed <"/proc/$pid/environ" 2>/dev/null)"
        text "$(readlink "/proc/$pid/cwd" 2>/dev/null)."
        text "$(version_of "$pid")."
        echo
    done
}

containers() {
    command -v docker >/dev/null 2>&1 || return
    if ! running=$(limit docker ps -q --no-trunc 2>&1); then
        printf 'problem docker'
        text "$running"
        echo
        return
    fi
    [ -n "$running" ] || return
    # shellcheck disable=SC2086
    ids="$ids $(limit docker inspect --type container \
        --format '{{.Id}} {{json .Path}} {{json .Args}} {{json .Config.Image}}' $running |
        grep -i sglang | cut -d ' ' -f 1)"
    for id in $(printf '%s\n' $ids | sort -u); do
        case $running in *"$id"*) ;; *) continue ;; esac
        whole=$(limit docker inspect --type container --format '{{json .}}' "$id") || continue
        image=$(limit docker inspect --type container --format '{{.Image}}' "$id")
        printf 'container %s' "$id"
        text "$whole"
        text "$(limit docker image inspect --format '{{json .}}' "$image" 2>/dev/null)."
        echo
    done
}

places() {
    for place in /etc/systemd/system /run/systemd/system /usr/local/lib/systemd/system \
        /usr/lib/systemd/system; do
        grep -ls sglang "$place"/*.service "$place"/*.service.d/*.conf
    done | sed 's|\.service\.d/[^/]*$|.service|; s|.*/||' | sort -u
}

unit_files() {
    command -v systemctl >/dev/null 2>&1 || return
    names=$(
        for name in $(places); do
            case $name in
                *@.service)
                    limit systemctl list-units --plain --no-legend --no-pager "${name%.service}*.service" |
                        cut -d ' ' -f 1
                    ;;
                *) printf '%s\n' "$name" ;;
            esac
        done
    )
    for unit in $(printf '%s\n' $names $units | sort -u); do
        limit systemctl is-active --quiet "$unit" || continue
        whole=$(limit systemctl cat --no-pager "$unit" 2>/dev/null) || continue
        printf 'unit %s %s' "$unit" "$(limit systemctl show --property=MainPID --value "$unit")"
        text "$whole"
        echo
        printf '%s\n' "$whole" | sed -n 's/^EnvironmentFile=-\{0,1\}//p' |
            while IFS= read -r path; do
                [ -r "$path" ] && [ -f "$path" ] || continue
                printf 'file'
                text "$path"
                printf ' %s' "$(packed <"$path")"
                echo
            done
    done
}

echo '@adopt 1'
# Not in a pipe: the others need what it found.
processes
containers
unit_files
echo '@end'
