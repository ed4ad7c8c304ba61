#!/bin/sh
# sglang-survey: prints what a node is, in one go, and changes nothing on it.
#
# Takes words of the form key=value (facts/request.py writes them). Prints a first line
# "sglang-survey 1 VERSION", then sections, and "@ end" as the last line:
#
#     @ NAME rc=EXITCODE        127: there is no such program or file; 124, 137: time limit
#      a line of its output     one space, then the raw line
#     !a line of its errors     at most 4 KiB of them
#
# Output is followed by one more line break, so that its own last one is not lost. Nothing is
# interpreted here that Python can interpret later. The parts run side by side. One that does not
# return (nvidia-smi in uninterruptible sleep cannot be killed, nor can a stat on a dead NFS
# mount) is abandoned at the deadline and named under "@ parts"; its standard streams are files
# and /dev/null, so that it keeps no SSH channel open.
#
# Must run under dash, busybox ash and bash. Comments on lines of their own do not travel to the
# node, nor does indentation: no multi-line string here may depend on it.

# shellcheck disable=SC2317,SC2030,SC2031 # functions called by name; parts keep their own P
set -u
umask 077
LC_ALL=C
# A non-interactive SSH session has a short PATH: none of sbin, snap, WSL's driver directory.
PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PATH=$PATH:/usr/lib/wsl/lib:/snap/bin:/usr/local/cuda/bin:/opt/nvidia/nvlsm/sbin
export LC_ALL PATH
# systemctl must not start a pager or look for colours; docker must not print hints.
SYSTEMD_PAGER='' SYSTEMD_COLORS=0 DOCKER_CLI_HINTS=false
export SYSTEMD_PAGER SYSTEMD_COLORS DOCKER_CLI_HINTS

version=0 deadline=20 deployments='' launch='' dropins='' dropin_text='' pythons=''
deployment_texts=' '
for word in "$@"; do
    value=${word#*=}
    case $word in
        version=*) version=$value ;;
        deadline=*) deadline=$value ;;
        deployments=*) deployments=$value ;;
        launch=*) launch=$value ;;
        dropins=*) dropins=$value ;;
        dropin-text=*) dropin_text=$value ;;
        pythons=*) pythons=$value ;;
        deployment-text=*) deployment_texts="$deployment_texts$value " ;;
    esac
done

# Sets `hundredths` to the time since boot. It asks no clock that somebody may set.
clock() {
    read -r uptime _ </proc/uptime
    hundredths=${uptime%.*}${uptime#*.}
}
clock
started=$hundredths
last=$((started + deadline * 100))

T=
for base in /dev/shm /run /tmp "${TMPDIR:-/tmp}"; do
    T=$(mktemp -d "$base/sglang-survey.XXXXXXXX" 2>/dev/null) && break
done
if [ -z "$T" ]; then
    echo "sglang-survey 1 $version"
    echo '@ failed rc=1'
    echo ' none of /dev/shm, /run and /tmp can be written to'
    echo '@ end'
    exit 0
fi

# Kills a process and all below it: what was abandoned, where it can be killed.
kill_tree() {
    children=$(cat "/proc/$1/task/$1/children" 2>/dev/null)
    kill -KILL "$1" 2>/dev/null
    for child in $children; do
        kill_tree "$child"
    done
}
parts='' pids=''
clean() {
    for name in $parts; do
        [ -e "$T/$name.end" ] && continue
        pid=${pids##*" $name="}
        kill_tree "${pid%% *}"
    done
    rm -rf "$T"
}
trap clean EXIT
trap 'exit 143' HUP INT TERM PIPE

# GNU and newer busybox know -k; with neither a command is held by the deadline alone.
limiter=
if timeout -k 1 5 true 2>/dev/null; then
    limiter='timeout -k 1'
elif timeout 5 true 2>/dev/null; then
    limiter=timeout
fi

have() { command -v "$1" >/dev/null 2>&1; }

# Runs a program for as long as is left, less a second to say so.
limit() {
    have "$1" || return 127
    if [ -z "$limiter" ]; then
        "$@"
        return
    fi
    clock
    left=$(((last - hundredths) / 100 - 1))
    [ "$left" -ge 1 ] || return 124
    # shellcheck disable=SC2086 # a command and its options
    $limiter "$left" "$@"
}

# Prints where a program is; shells differ in the exit code of command -v.
path_of() { command -v "$1" || return 127; }

# Prints a file; says apart that there is none.
show() {
    [ -e "$1" ] || return 127
    cat "$1"
}

# item NAME COMMAND...: runs it and keeps its output as a section, whole or not at all.
count=100
item() {
    section=$1
    shift
    "$@" >"$P.out" 2>"$P.err"
    rc=$?
    count=$((count + 1))
    {
        echo "@ $section rc=$rc"
        { head -c 2000000 "$P.out"; echo; } | sed 's/^/ /'
        if [ -s "$P.err" ]; then
            { head -c 4096 "$P.err"; echo; } | sed 's/^/!/'
        fi
    } >"$P.section"
    mv "$P.section" "$P.$count.sec"
    return "$rc"
}

# start PART FUNCTION...: runs a part beside the others.
start() {
    P=$T/$1
    parts="$parts $1"
    echo "$*" >"$P.part"
    (
        shift
        "$@"
        : >"$P.end"
    ) </dev/null >"$P.stdout" 2>"$P.stderr" &
    pids="$pids $1=$!"
}

# ---- the machine ------------------------------------------------------------------------------

glibc() {
    getconf GNU_LIBC_VERSION 2>/dev/null && return
    have ldd || return 127
    ldd --version 2>&1 | head -n 1
}

user() {
    id -u
    id -un
}

http_client() {
    for client in curl python3 wget; do
        have "$client" && echo "$client" && return
    done
    return 127
}

# Each line names something that says what kind of machine this is.
platform() {
    [ -e /dev/dxg ] && echo 'dxg'
    [ -e /etc/nv_tegra_release ] && sed 's/^/tegra-release /' /etc/nv_tegra_release
    if [ -r /proc/device-tree/compatible ]; then
        tr '\000' '\n' </proc/device-tree/compatible | sed 's/^/compatible /'
    fi
    for device in /dev/nvidia-vgpu*; do
        [ -e "$device" ] && echo "vgpu $device"
    done
    return 0
}

host() {
    item uname uname -srm
    item os-release show /etc/os-release
    item dgx-release show /etc/dgx-release
    item glibc glibc
    item boot-id show /proc/sys/kernel/random/boot_id
    item meminfo show /proc/meminfo
    item user user
    item http-client http_client
    item selinux limit getenforce
    item clock date +%s
    item platform platform
    if [ "$(id -u)" != 0 ]; then
        item sudo limit sudo -n true
    fi
}

# ---- NVIDIA -----------------------------------------------------------------------------------

pci() {
    [ -d /sys/bus/pci/devices ] || return 127
    for device in /sys/bus/pci/devices/*; do
        read -r vendor <"$device/vendor" || continue
        [ "$vendor" = 0x10de ] || continue
        read -r class <"$device/class"
        read -r number <"$device/device"
        echo "${device##*/} $class $number"
    done
}

nvidia_devices() {
    for device in /dev/nvidia*; do
        [ -e "$device" ] && echo "$device"
    done
    return 0
}

nvidia() {
    item nvidia.module show /proc/driver/nvidia/version
    item nvidia.modules grep -E '^(nouveau|nvidia)' /proc/modules
    item nvidia.pci pci
    item nvidia.devices nvidia_devices
    item nvidia.fabricmanager limit nv-fabricmanager --version
    item nvidia.nvlsm path_of nvlsm
    item nvidia.ctk limit nvidia-ctk --version
    item nvidia.runtime-config show /etc/nvidia-container-runtime/config.toml
}

# A field that an old driver does not know ends the query with 2: then the same without the
# newest ones. The table is for where no query gives a list, and for WSL, where only its header
# tells nvidia-smi's version from the driver's.
smi_query() {
    item smi.path path_of nvidia-smi || return
    first=index,name,uuid,driver_version
    rest=memory.total,memory.used,mig.mode.current,mig.mode.pending,pci.bus_id,persistence_mode
    item smi.query limit nvidia-smi \
        "--query-gpu=$first,compute_cap,$rest,addressing_mode" --format=csv,noheader
    if [ "$rc" = 2 ]; then
        item smi.query-short limit nvidia-smi "--query-gpu=$first,$rest" --format=csv,noheader
    fi
    # Only the list names MIG devices by their UUIDs; mode, pending mode and bus id stand in a row.
    if grep -q ', Enabled, [A-Z][a-z]*, [0-9A-Fa-f]*:[0-9A-Fa-f]*:' "$P.out"; then
        cp "$P.out" "$P.query"
        item smi.list limit nvidia-smi -L
        mv "$P.query" "$P.out"
        rc=0
    fi
    if [ "$rc" != 0 ] || [ -e /dev/dxg ] || ! grep -q '^[0-9][0-9]*, ' "$P.out"; then
        item smi.table limit nvidia-smi
    fi
}

smi_xml() {
    have nvidia-smi || return
    item smi.xml limit nvidia-smi -q -x
}

# ---- containers -------------------------------------------------------------------------------

docker_path() {
    path_of docker || return
    readlink -f "$(command -v docker)"
}

# Of a specification in YAML only the lines that say kind and names: the rest is long.
cdi_spec() {
    echo "$1"
    case $1 in
        *.json) cat "$1" ;;
        *) grep -E '^[ -]*"?(kind|name|devices|containerEdits|annotations|cdiVersion)"?:' "$1" ;;
    esac
}

docker_engine() {
    item podman limit podman --version
    item docker.path docker_path
    item docker.version limit docker version --format '{{json .}}'
    item docker.info limit docker info --format '{{json .}}'
    root=$(sed -n 's/.*"DockerRootDir":"\([^"]*\)".*/\1/p' "$P.out")
    dirs=$(sed -n 's/.*"CDISpecDirs":\[\([^]]*\)\].*/\1/p' "$P.out" | tr -d '"' | tr , ' ')
    item containerd.config grep -E '^ *root *=' /etc/containerd/config.toml
    for dir in ${dirs:-/etc/cdi /var/run/cdi}; do
        for spec in "$dir"/*.yaml "$dir"/*.yml "$dir"/*.json; do
            [ -e "$spec" ] && item cdi.spec cdi_spec "$spec"
        done
    done
    for path in "$root" /var/lib/containerd; do
        [ -n "$path" ] && [ -e "$path" ] && item space space_of "$path"
    done
}

docker_images() {
    item docker.images limit docker images --no-trunc --digests --format '{{json .}}'
}

# Never the whole of docker inspect: it holds environments, and with them secrets.
docker_containers() {
    have docker || return
    limit docker ps -q --no-trunc >"$P.ids" || return
    limit docker ps -aq --no-trunc --filter name=sglang- >>"$P.ids"
    ids=$(sort -u "$P.ids" | head -n 500)
    [ -n "$ids" ] || return
    # Of its labels only ours: what others put there is theirs.
    form='{"pid":{{json .State.Pid}},"id":{{json .Id}},"name":{{json .Name}}'
    form=$form',"image":{{json .Image}}'
    form=$form',"deployment":{{json (index .Config.Labels "sglang.deployment")}}'
    form=$form',"image_name":{{json .Config.Image}},"state":{{json .State.Status}}'
    form=$form',"started":{{json .State.StartedAt}},"runtime":{{json .HostConfig.Runtime}}'
    form=$form',"requests":{{json .HostConfig.DeviceRequests}}'
    form=$form',"devices":{{json .HostConfig.Devices}}}'
    # shellcheck disable=SC2086 # many ids
    item docker.containers limit docker inspect --type container --format "$form" $ids
    sed -n 's/^{"pid":\([1-9][0-9]*\),"id":"[0-9a-f]*","name":"\/\(sglang-[^"]*\)".*/\1 \2/p' \
        "$P.out" >"$P.ours"
    while read -r pid container; do
        item container.began began "$container" "$pid"
    done <"$P.ours"
}

# Prints a name and when its process began, in ticks since boot: no clock that somebody sets.
began() {
    echo "$1"
    words=$(cat "/proc/$2/stat") || return 127
    # shellcheck disable=SC2086 # the fields after its name, which may hold anything
    set -- ${words##*) }
    echo "${20}"
}

# ---- paths and files --------------------------------------------------------------------------

# Prints the path as asked, its nearest parent that exists, where that really is, its free space.
space_of() {
    existing=$1
    while [ ! -e "$existing" ] && [ -n "${existing%/*}" ] && [ "$existing" != "${existing%/*}" ]
    do
        existing=${existing%/*}
    done
    [ -e "$existing" ] || existing=/
    echo "$1"
    echo "$existing"
    readlink -f "$existing" || echo "$existing"
    limit df -Pk "$existing"
}

space() {
    item space space_of "$1"
}

mounts() {
    item mounts show /proc/mounts
}

# Prints the path of a model and, each on a line with its size, the files that hold weights; of
# the index of the weights the bytes of all of them together. No weights are read.
model_files() {
    echo "$1"
    [ -e "$1" ] || return 127
    dir=$1
    if [ -d "$1" ]; then
        [ -r "$1" ] && [ -x "$1" ] || return 13
        set -- "$1"/*.safetensors "$1"/*.bin "$1"/*.gguf "$1"/*.pt "$1"/*.pth
    fi
    # What matches nothing stays as its pattern, and is no file.
    limit stat -L -c 'size %s %n' "$@" 2>/dev/null
    for name in model.safetensors.index.json pytorch_model.bin.index.json; do
        if [ -r "$dir/$name" ]; then
            total=$(head -c 67108864 "$dir/$name" | grep -o '"total_size": *[0-9]*' | head -n 1)
            [ -n "$total" ] && echo "index ${total##*[!0-9]}"
        fi
    done
    [ -e "$dir/params.json" ] && echo 'params.json'
    return 0
}

# A config.json that is larger than any real one is not a config.
model_config() {
    echo "$1"
    [ -e "$1/config.json" ] || return 127
    [ -r "$1/config.json" ] || return 13
    [ "$(wc -c <"$1/config.json")" -le 1048576 ] || return 27
    cat "$1/config.json"
}

model() {
    item model model_files "$1"
    [ -f "$1" ] || item model.config model_config "$1"
}

# Prints the path and, of what exists, kind, mode, owner, size and checksum (not of a secret:
# a checksum lets one try out guesses). Behind a directory
# that cannot be searched nothing can be said to be missing.
file_state() {
    echo "$1"
    if [ ! -e "$1" ] && [ ! -L "$1" ]; then
        parent=${1%/*}
        while [ -n "$parent" ] && [ ! -e "$parent" ]; do
            parent=${parent%/*}
        done
        [ -x "${parent:-/}" ] || return 13
        return 0
    fi
    stat -c '%F|%a|%U:%G|%s' "$1" || return 13
    [ -f "$1" ] || return 0
    [ "${2:-}" != secret ] || return 0
    [ -r "$1" ] || return 13
    sum=$(sha256sum <"$1") || return 13
    echo "${sum%% *}"
}

# What may be a secret is masked before it travels, even where none should be.
secret_words='(api|access|secret|private)[-_]?key|secret|(hf|hub|auth|access|bearer)[-_]token|passw(or)?d'
secret_keys="^([[:space:]]*[\"']?[A-Za-z0-9_-]*(${secret_words})[\"']?[[:space:]]*"
file_text() {
    [ -f "$1" ] && [ -r "$1" ] || return 127
    echo "$1"
    sed -E "s/${secret_keys}[:=]).+/\\1 *MASKED*/I" "$1"
}

file() {
    item file file_state "$1"
}

text() {
    file "$1"
    if [ -f "$1" ] && [ -r "$1" ]; then
        item text file_text "$1"
    fi
}

files() {
    for word in "$@"; do
        case $word in
            file=*) file "${word#file=}" ;;
            text=*) text "${word#text=}" ;;
            secret=*) item file file_state "${word#secret=}" secret ;;
        esac
    done
}

# Prints a hub model (HF_HOME:NAME), then what was found good of it (marked COMMIT SIZE|TIME|SUM|PATH),
# what is there (there SIZE|TIME|COMMIT/PATH) and what has come so far of the rest (part SIZE|FILE).
weights_of() {
    echo "$1"
    home=${1%:*} name=${1##*:}
    [ -d "$home" ] || return 127
    cd "$home" || return 13
    for mark in "sglang/$name"/*; do
        case $mark in
            *.*) ;;
            *) [ ! -f "$mark" ] || sed "s/^/marked ${mark##*/} /" "$mark" ;;
        esac
    done
    cd "$home/hub/$name" 2>/dev/null || return 0
    if [ -d snapshots ]; then
        cd snapshots || return 13
        limit find -L . -type f -exec stat -L -c 'there %s|%Y|%n' {} +
        cd ..
    fi
    for part in blobs/*.part; do
        [ ! -f "$part" ] || stat -c 'part %s|%n' "$part"
    done
}

weights() {
    item weights weights_of "$1"
}

# ---- systemd and the services -----------------------------------------------------------------

properties=Id,LoadState,ActiveState,SubState,Result,UnitFileState,MainPID,NRestarts,InvocationID
properties=$properties,StateChangeTimestamp,StatusText,NeedDaemonReload,ExecMainStatus
properties=$properties,FragmentPath,DropInPaths,ActiveEnterTimestampMonotonic
properties=$properties,ExecMainStartTimestampMonotonic

systemd() {
    item systemd.version limit systemctl --version
    item systemd.state limit systemctl is-system-running
    item systemd.units limit systemctl show --property=Id,LoadState,ActiveState \
        nvidia-fabricmanager.service nvidia-persistenced.service nvidia-vgpu-mgr.service
}

# The services are those that systemd knows, those enabled, and those with a deployment.
service_names() {
    {
        limit systemctl list-units --all --plain --no-legend --no-pager 'sglang@*.service'
        for link in /etc/systemd/system/*.wants/sglang@*.service; do
            echo "${link##*/} "
        done
        for dir in "$deployments"/*/; do
            dir=${dir%/}
            [ -d "$dir" ] && echo "sglang@${dir##*/}.service "
        done
    } 2>/dev/null | sed -n 's/^[^a-z]*sglang@\([A-Za-z0-9][A-Za-z0-9._-]*\)\.service .*/\1/p' | sort -u
}

# Prints the service, where its links point, and the numbers of its deployments.
deployment() {
    echo "$1"
    [ -d "$deployments/$1" ] || return 127
    [ -x "$deployments/$1" ] && [ -r "$deployments/$1" ] || return 13
    for link in current previous; do
        if [ -L "$deployments/$1/$link" ]; then
            echo "$link $(readlink "$deployments/$1/$link")"
        fi
    done
    for dir in "$deployments/$1"/*/; do
        dir=${dir%/}
        [ -L "$dir" ] || echo "number ${dir##*/}"
    done
}

# Prints the directory of a service's current deployment, by the path that the caller knows, also
# where a directory above it is a link to somewhere else.
current_of() {
    number=$(readlink "$deployments/$1/current") || number=none
    echo "$deployments/$1/${number##*/}"
}

setting() {
    sed -n "s/^$1=//p" "$2" | tail -n 1 | tr -d "\"'"
}

# Prints the header with the key that the server's own configuration FILE holds, if it holds one:
# for a client's standard input or a file of ours, never for an argument list.
authorization() {
    [ -r "$1" ] || return 0
    sed -n 's/^api-key: "\(.*\)"$/Authorization: Bearer \1/p' "$1"
}

# ask URL CLIENT CONFIG: prints the HTTP status and then the body of an answer; no proxy is for one's own address.
ask() {
    unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
    case $2 in
        curl)
            authorization "$3" | limit curl -q -s -m 3 -H @- -w '%{http_code}\n' -o "$P.body" \
                "$1" || return
            ;;
        python3)
            authorization "$3" | limit python3 -c '
import sys, urllib.error, urllib.request as r
h = dict(l.strip().split(": ", 1) for l in sys.stdin if ": " in l)
try: a = r.urlopen(r.Request(sys.argv[1], headers=h), timeout=3)
except urllib.error.HTTPError as error: a = error
print(a.status)
open(sys.argv[2], "wb").write(a.read(65536))
' "$1" "$P.body" || return
            ;;
        wget)
            authorization "$3" | sed 's/^/header = /' >"$P.wgetrc"
            set -- "$1"
            [ ! -s "$P.wgetrc" ] || set -- --config="$P.wgetrc" "$1"
            limit wget -q -S -T 3 -O "$P.body" "$@" 2>"$P.headers"
            rm -f "$P.wgetrc"
            sed -n 's/^ *HTTP\/[0-9.]* \([0-9]*\).*/\1/p' "$P.headers" | tail -n 1
            ;;
    esac
    head -c 65536 "$P.body" 2>/dev/null
    rm -f "$P.body"
}

# Asks the service NAME that listens as the file FILE says.
answer() {
    settings=$2
    client=$(http_client) || return
    address=$(setting SGLANG_ADDRESS "$settings")
    port=$(setting SGLANG_PORT "$settings")
    ready=$(setting SGLANG_READY_PATH "$settings")
    config=$(setting SGLANG_CONFIG "$settings")
    [ -n "$port" ] || return
    case $address in
        '' | 0.0.0.0) address=127.0.0.1 ;;
        :: | '[::]') address='[::1]' ;;
        '['*) ;;
        *:*) address="[$address]" ;;
    esac
    # The first line of each is the service, so that the answers tell apart.
    item answer.ready ask_for "$1" "http://$address:$port${ready:-/health}" "$client" "$config"
    item answer.models ask_for "$1" "http://$address:$port/v1/models" "$client" "$config"
}

ask_for() {
    echo "$1"
    ask "$2" "$3" "$4"
}

# Prints a drop-in of somebody else and the directives it sets, never their values.
dropin_keys() {
    echo "$1"
    [ -r "$1" ] || return 13
    awk '
        continued { continued = /\\$/; next }
        /^[ \t]*([#;]|$)/ { next }
        /^[ \t]*\[[A-Za-z0-9-]*\]/ { gsub(/[][ \t\r]/, ""); section = $0; next }
        /^[ \t]*[A-Za-z0-9-]+[ \t]*=/ {
            continued = /\\$/
            sub(/[ \t]*=.*/, "")
            sub(/^[ \t]*/, "")
            print section "." $0
        }' "$1" | sort -u
}

main_processes() {
    awk -F= '
        function tell() { if (pid + 0 > 0 && id != "") print pid, id; id = pid = "" }
        $1 == "Id" { id = $2 }
        $1 == "MainPID" { pid = $2 }
        /^$/ { tell() }
        END { tell() }' "$P.shown"
}

foreign_dropins() {
    sed -n 's/^DropInPaths=//p' "$P.shown" | tr ' ' '\n' | sort -u | while read -r path; do
        case $path in
            '' | */"$dropin_text") ;;
            *) echo "$path" ;;
        esac
    done
}

services() {
    names=$(service_names)
    [ -n "$names" ] || return
    units=
    for name in $names; do
        units="$units sglang@$name.service"
    done
    # shellcheck disable=SC2086 # many units
    item services.show limit systemctl show "--property=$properties" $units
    cp "$P.out" "$P.shown"
    for name in $names; do
        current=$(current_of "$name")
        if [ -f "$current/$launch" ] && active "$name"; then
            # One service that does not answer must not hold up the next.
            (
                P=$P-answer-$name
                answer "$name" "$current/$launch"
            ) &
        fi
    done
    main_processes >"$P.main"
    while read -r pid unit; do
        item main.began began "$unit" "$pid"
    done <"$P.main"
    for path in $(foreign_dropins); do
        item dropin.keys dropin_keys "$path"
    done
    for name in $names; do
        item deployment deployment "$name"
        current=$(current_of "$name")
        for path in "$current"/*; do
            [ -f "$path" ] || continue
            case $deployment_texts in
                *" ${path##*/} "*) text "$path" ;;
                *) file "$path" ;;
            esac
        done
        # A configuration with keys stands apart; its checksum is that of a slow one of each key.
        if [ -f "$current/$launch" ]; then
            config=$(setting SGLANG_CONFIG "$current/$launch")
            case $config in
                "$current"/* | '') ;;
                *) file "$config" ;;
            esac
        fi
        drop_in_dir=${dropins%%%*}$name${dropins#*%}
        for path in "$drop_in_dir"/*.conf; do
            [ -e "$path" ] || continue
            case ${path##*/} in
                "$dropin_text") text "$path" ;;
                *) file "$path" ;;
            esac
        done
    done
    wait
}

# Says whether systemd showed the unit of a service as active.
active() {
    id='' state=''
    while IFS='=' read -r key value; do
        case $key in
            Id) id=$value ;;
            ActiveState) state=$value ;;
            '')
                [ "$id" != "sglang@$1.service" ] || break
                id='' state=''
                ;;
        esac
    done <"$P.shown"
    [ "$id=$state" = "sglang@$1.service=active" ]
}

# ---- network ----------------------------------------------------------------------------------

network() {
    item listeners.ss limit ss -H -ltnp && return
    item listeners.tcp show /proc/net/tcp
    item listeners.tcp6 show /proc/net/tcp6
}

# ---- what the wheel runtime would find --------------------------------------------------------

python_state() {
    echo "$1"
    limit "$1" -c '
import os, platform, sysconfig
include = sysconfig.get_paths()["include"]
print(platform.python_version())
print(include if os.path.exists(os.path.join(include, "Python.h")) else "")
'
}

program_state() {
    echo "$1"
    limit "$1" --version
}

cuda_home() {
    echo "$1"
    for name in bin/nvcc lib64/libcudart.so include/cuda_runtime.h; do
        [ -e "$1/$name" ] && echo "$name"
    done
    [ -f "$1/version.json" ] && sed -n '/"cuda"/,/}/s/.*"version" *: *"\([^"]*\)".*/version \1/p' \
        "$1/version.json"
    return 0
}

toolchain() {
    for name in python3.10 python3.11 python3.12 python3.13 python3.14 python3; do
        path=$(command -v "$name") && item python python_state "$path"
    done
    for path in "$pythons"/*/bin/python3; do
        [ -x "$path" ] && item python python_state "$path"
    done
    for name in g++ c++ gcc clang++; do
        path=$(command -v "$name") && item compiler program_state "$path"
    done
    for path in "$(command -v nvcc)" /usr/local/cuda*/bin/nvcc "${CUDA_HOME:-/none}/bin/nvcc"; do
        [ -x "$path" ] && item nvcc program_state "$path"
    done
    for path in "${CUDA_HOME:-}" /usr/local/cuda*; do
        [ -n "$path" ] && [ -d "$path" ] && item cuda-home cuda_home "$path"
    done
    item ninja limit ninja --version
}

# ---- all of it, side by side ------------------------------------------------------------------

start nvidia-smi-query smi_query
start nvidia-smi-xml smi_xml
start docker docker_engine
start docker-images docker_images
start docker-containers docker_containers
start services services
start toolchain toolchain
start host host
start nvidia nvidia
start systemd systemd
start network network
start mounts mounts
start files files "$@"
number=0
for word in "$@"; do
    case $word in
        space=*)
            number=$((number + 1))
            start "space-$number" space "${word#space=}"
            ;;
        weights=*)
            number=$((number + 1))
            start "weights-$number" weights "${word#weights=}"
            ;;
        model=*)
            number=$((number + 1))
            start "model-$number" model "${word#model=}"
            ;;
    esac
done

while :; do
    unfinished=
    for name in $parts; do
        [ -e "$T/$name.end" ] || unfinished="$unfinished $name"
    done
    [ -n "$unfinished" ] || break
    clock
    [ "$hundredths" -lt "$last" ] || break
    sleep 0.05 2>/dev/null || sleep 1
done

# Lines that no Python has to guess about: control characters go, and bytes that are not UTF-8,
# which pyinfra could not decode.
plain() {
    if have iconv; then
        tr -d '\000-\010\013-\037\177' | iconv -c -f UTF-8 -t UTF-8
    else
        tr -d '\000-\010\013-\037\177-\377'
    fi
}
{
    echo "sglang-survey 1 $version"
    cat "$T"/*.sec
    clock
    echo '@ parts rc=0'
    echo " hundredths $((hundredths - started))"
    for name in $unfinished; do
        sed 's/^/ unfinished /' "$T/$name.part"
    done
    echo '@ end'
} | plain
exit 0
