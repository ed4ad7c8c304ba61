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
# interpreted here that Python can interpret later. What the shell can do itself it does: a node
# pays a millisecond for every process that is started. The parts run side by side. One that does not
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

version=0 deadline=20 deployments='' launch='' dropins='' dropin_text='' pythons='' history=0
whole=''
deployment_texts=' ' door='' environments='' tools='' account='' tls='' tls_key=''
past_texts=' start.json 10-toolkit.conf sglang@.service '
for word in "$@"; do
    value=${word#*=}
    case $word in
        version=*) version=$value ;;
        deadline=*) deadline=$value ;;
        deployments=*) deployments=$value ;;
        launch=*) launch=$value ;;
        door=*) door=$value ;;
        tls=*) tls=$value ;;
        tls-key=*) tls_key=$value ;;
        dropins=*) dropins=$value ;;
        dropin-text=*) dropin_text=$value ;;
        pythons=*) pythons=$value ;;
        environments=*) environments=$value ;;
        tools=*) tools=$value ;;
        account=*) account=$value ;;
        history=*) history=$value ;;
        whole=*) whole=$value ;;
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

# Prints a survey that says only why there is none.
refuse() {
    echo "sglang-survey 1 $version"
    echo '@ failed rc=1'
    echo " $1"
    echo '@ end'
}

# A directory can be made where no byte can be written, so room is tried: a file of 4 MiB. It stays,
# empty, for as long as all that was to be written was written.
T=
for base in /dev/shm /run /tmp "${TMPDIR:-/tmp}"; do
    T=$(mktemp -d "$base/sglang-survey.XXXXXXXX" 2>/dev/null) || continue
    if { head -c 4194304 /dev/zero && echo; } >"$T/room" 2>/dev/null; then
        : >"$T/room"
        break
    fi
    rm -rf "$T"
    T=
done
why=
[ -n "$T" ] || why='none of /dev/shm, /run and /tmp can be written to, with 4 MiB of room'
command -v awk >/dev/null 2>&1 || why='it has no awk'
if [ -n "$why" ]; then
    [ -z "$T" ] || rm -rf "$T"
    refuse "$why"
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

# lookup PROGRAM [DIRECTORIES]: sets `found` to where a program is, as a shell would find it.
lookup() {
    rest=${2:-$PATH}:
    while [ -n "$rest" ]; do
        found=${rest%%:*}/$1
        [ -f "$found" ] && [ -x "$found" ] && return
        rest=${rest#*:}
    done
    found=
    return 127
}

# Prints where a program is.
path_of() { lookup "$1" && echo "$found"; }

# Prints a file; says apart that there is none.
show() {
    [ -e "$1" ] || return 127
    cat "$1"
}

# The same of a small file, without another process.
show_small() {
    [ -e "$1" ] || return 127
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
    done <"$1"
}

# item NAME COMMAND...: runs it and keeps its output as a section, whole or not at all: the
# heading is written when it has ended. `out` is the file of its output, `rc` how it ended.
count=100
item() {
    count=$((count + 1))
    section=$1
    shift
    "$@" >"$P.$count.out" 2>"$P.$count.err"
    rc=$?
    out=$P.$count.out
    { echo >>"$out" && echo "@ $section rc=$rc" >"$P.$count.head"; } 2>/dev/null || rm -f "$T/room"
    return "$rc"
}

# Prints all sections: of an output 2 MB at most, of errors 4 KiB.
sections() {
    awk '
        function show(file, mark, most,  line) {
            while (most > 0 && (getline line <file) > 0) {
                print mark substr(line, 1, most)
                most -= length(line) + 1
            }
            close(file)
        }
        {
            print
            base = substr(FILENAME, 1, length(FILENAME) - length(".head"))
            show(base ".out", " ", 2000000)
            show(base ".err", "!", 4096)
        }' "$T"/*.head
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

# Prints number and name of who runs this: id says "uid=1000(ops) gid=1000(ops) ...".
user() {
    words=$(id) || return
    uid=${words#uid=}
    uid=${uid%%[!0-9]*}
    echo "$uid"
    case $words in "uid=$uid("*)
        name=${words#*\(}
        echo "${name%%\)*}"
        ;;
    esac
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
    item os-release show_small /etc/os-release
    item dgx-release show_small /etc/dgx-release
    item glibc glibc
    item boot-id show_small /proc/sys/kernel/random/boot_id
    item meminfo show /proc/meminfo
    uid=
    item user user
    item http-client http_client
    item selinux limit getenforce
    item clock date +%s
    item platform platform
    if [ "$uid" != 0 ]; then
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
    for device in /dev/nvidia* /dev/infiniband/uverbs*; do
        [ -e "$device" ] && echo "$device"
    done
    return 0
}

nvidia() {
    item nvidia.module show_small /proc/driver/nvidia/version
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
    ended=$rc listed='' mig=''
    while IFS= read -r line; do
        case $line in [0-9]*', '*) listed=yes ;; esac
        # Mode, pending mode and bus id stand in a row.
        case $line in *', Enabled, '[A-Z]*', '*:*:*) mig=yes ;; esac
    done <"$out"
    # Only the list names MIG devices by their UUIDs.
    [ -z "$mig" ] || item smi.list limit nvidia-smi -L
    if [ "$ended" != 0 ] || [ -e /dev/dxg ] || [ -z "$listed" ]; then
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
    readlink -f "$found"
}

# Of a specification in YAML only the lines that say kind and names: the rest is long.
cdi_spec() {
    echo "$1"
    case $1 in
        *.json) cat "$1" ;;
        *) grep -E '^[ -]*"?(kind|name|devices|containerEdits|annotations|cdiVersion)"?:' "$1" ;;
    esac
}

# The client's own version is in what newer ones say about the engine, from Docker 24 on. Where the
# engine is silent they may end that with 0 all the same: then the other call says why.
docker_engine() {
    item podman limit podman --version
    item docker.path docker_path
    item docker.info limit docker info --format '{{json .}}'
    root='' dirs='' client='' engine=''
    sed -n '/^{/{
        h
        s/.*"DockerRootDir":"\([^"]*\)".*/root \1/p
        g
        s/.*"CDISpecDirs":\[\([^]]*\)\].*/dirs \1/p
        g
        s/.*"ServerVersion":"\([^"][^"]*\)".*/engine \1/p
        g
        s/.*"ClientInfo":{"Debug":[a-z]*,\("Platform":{[^}]*},\)*"Version":"\([^"]*\)".*/client \2/p
    }' "$out" >"$P.told"
    while read -r word value; do
        case $word in
            root) root=$value ;;
            dirs) dirs=$value ;;
            client) client=$value ;;
            engine) engine=$value ;;
        esac
    done <"$P.told"
    if [ -z "$client" ] || [ -z "$engine" ]; then
        item docker.version limit docker version --format '{{json .}}'
    fi
    item containerd.config grep -E '^ *root *=' /etc/containerd/config.toml
    # Between the quotes and commas of a list in JSON.
    IFS='",'
    # shellcheck disable=SC2086 # many directories
    set -- ${dirs:-/etc/cdi,/var/run/cdi}
    unset IFS
    for dir in "$@"; do
        [ -n "$dir" ] || continue
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

list_containers() {
    limit docker ps -a --no-trunc --format '{{.ID}} {{.Names}} {{.Status}}' >"$P.ps"
}

# Never the whole of docker inspect: it holds environments, and with them secrets.
docker_containers() {
    have docker || return
    item docker.ps list_containers || return
    ids='' others=0
    while read -r id name status; do
        case $name/$status in
            *sglang-*/*) ids="$ids $id" ;;
            */Up* | */Restarting*)
                others=$((others + 1))
                [ "$others" -gt 500 ] || ids="$ids $id"
                ;;
        esac
    done <"$P.ps"
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
    shown=$out
    while IFS= read -r line; do
        case $line in '{"pid":'[1-9]*',"id":"'*'","name":"/sglang-'*)
            pid=${line#*:}
            container=${line#*'","name":"/'}
            item container.began began "${container%%\"*}" "${pid%%,*}"
            ;;
        esac
    done <"$shown"
}

# Prints a name and when its process began, in ticks since boot: no clock that somebody sets.
began() {
    echo "$1"
    [ -r "/proc/$2/stat" ] && read -r words <"/proc/$2/stat" || return 127
    # shellcheck disable=SC2086 # the fields after its name, which may hold anything
    set -- ${words##*) }
    echo "${20}"
}

# Prints a unit and the deployment that its process was started from; of its environment, which
# may hold what is private, nothing else.
started_from() {
    echo "$1"
    tr '\000' '\n' <"/proc/$2/environ" | sed -n '/^SGLANG_DEPLOYMENT=/{s///p;q;}'
}

# ---- paths and files --------------------------------------------------------------------------

# Prints the path as asked, its nearest parent that exists, where that really is, its free space.
# A dead mount holds it up, and that part alone: no time limit of its own would come any sooner.
space_of() {
    existing=$1
    while [ ! -e "$existing" ] && [ -n "${existing%/*}" ] && [ "$existing" != "${existing%/*}" ]
    do
        existing=${existing%/*}
    done
    [ -e "$existing" ] || existing=/
    echo "$1"
    echo "$existing"
    # The shell knows where it stands itself.
    { cd "$existing" 2>/dev/null && pwd -P; } || readlink -f "$existing" || echo "$existing"
    df -Pk "$existing"
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

# file PATH and secret PATH note a file of which kind, mode, owner and size are wanted, and its
# checksum (not of a secret: a checksum lets one try out guesses). `states` then asks for those of
# all that the part noted at once.
file() { note file "$1"; }
secret() { note secret "$1"; }

newline='
'
note() {
    # A name of two lines is none of ours.
    case $2 in *"$newline"*) return ;; esac
    printf '%s %s\n' "$1" "$2" >>"$P.noted"
}

states() {
    [ -s "$P.noted" ] || return 0
    checksums <"$P.noted" >"$P.sums" 2>/dev/null
    set --
    while IFS= read -r line; do
        set -- "$@" "${line#* }"
    done <"$P.noted"
    stat -c '%F|%a|%U:%G|%s|%n' "$@" >"$P.stats" 2>/dev/null
    # Both say in the order of the question what they have an answer for.
    exec 3<"$P.noted" 4<"$P.stats" 5<"$P.sums"
    next_stat
    next_sum
    while IFS= read -r line <&3; do
        item file file_state "${line#* }" "${line%% *}"
    done
    exec 3<&- 4<&- 5<&-
    : >"$P.noted"
}

checksums() {
    set --
    while IFS= read -r line; do
        path=${line#* }
        [ "${line%% *}" = file ] && [ -f "$path" ] && [ -r "$path" ] && set -- "$@" "$path"
    done
    [ "$#" = 0 ] || sha256sum "$@"
}

next_stat() { IFS='|' read -r type mode owner size stat_of <&4 || stat_of=; }

next_sum() {
    IFS= read -r line <&5 || line=
    sum=${line%% *} sum_of=${line#*  }
}

# Prints the path and what was seen of it; asks again for it alone where there was no line of it
# (a name that sha256sum writes in another way). Behind a directory that cannot be searched nothing
# can be said to be missing.
file_state() {
    printf '%s\n' "$1"
    seen='' checksum=''
    if [ "$stat_of" = "$1" ]; then
        seen="$type|$mode|$owner|$size"
        next_stat
    fi
    if [ "$sum_of" = "$1" ]; then
        checksum=$sum
        next_sum
    fi
    if [ ! -e "$1" ] && [ ! -L "$1" ]; then
        parent=${1%/*}
        while [ -n "$parent" ] && [ ! -e "$parent" ]; do
            parent=${parent%/*}
        done
        [ -x "${parent:-/}" ] || return 13
        return 0
    fi
    [ -n "$seen" ] || seen=$(stat -c '%F|%a|%U:%G|%s' "$1") || return 13
    echo "$seen"
    [ ! -L "$1" ] || echo "-> $(readlink "$1")"
    [ -f "$1" ] && [ "$2" = file ] || return 0
    [ -r "$1" ] || return 13
    [ -n "$checksum" ] || checksum=$(sha256sum <"$1") || return 13
    echo "${checksum%% *}"
}

# What may be a secret is masked before it travels, even where none should be.
secret_words='(api|access|secret|private)[-_]?key|secret|(hf|hub|auth|access|bearer)[-_]token|passw(or)?d'
secret_keys="^([[:space:]]*[\"']?[A-Za-z0-9_-]*(${secret_words})[\"']?[[:space:]]*"
file_text() {
    [ -f "$1" ] && [ -r "$1" ] || return 127
    echo "$1"
    sed -E "s/${secret_keys}[:=]).+/\\1 *MASKED*/I" "$1"
}

# of_deployment PATH: a file of a deployment that is read without its text. What a link says is
# where it leads: the configuration with keys may be there, and what is not sent is not tried out.
of_deployment() {
    if [ -L "$1" ]; then
        secret "$1"
    else
        file "$1"
    fi
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
            secret=*) secret "${word#secret=}" ;;
        esac
    done
    states
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

# Where systemd does not answer, its program still says its version, and why.
systemd() {
    item systemd.manager limit systemctl show --property=Version,SystemState || {
        item systemd.version limit systemctl --version
        item systemd.state limit systemctl is-system-running
    }
    item systemd.units limit systemctl show --property=Id,LoadState,ActiveState \
        nvidia-fabricmanager.service nvidia-persistenced.service nvidia-vgpu-mgr.service
}

# Adds the service of a unit to `names`, once.
add_unit() {
    name=${1#sglang@}
    name=${name%.service}
    case $name in '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) return ;; esac
    case " $names " in
        *" $name "*) ;;
        *) names="$names $name" ;;
    esac
}

# The services are those enabled, those with a deployment, and those that systemd knows.
services_there() {
    for path in /etc/systemd/system/*.wants/sglang@*.service "$deployments"/*/; do
        path=${path%/}
        [ -d "$path" ] || [ -L "$path" ] && add_unit "${path##*/}"
    done
    units=
    for name in $names; do
        units="$units sglang@$name.service"
    done
    # shellcheck disable=SC2086 # many units
    item services.show limit systemctl show "--property=$properties" 'sglang@*.service' $units
    shown=$out
    while IFS= read -r line; do
        case $line in Id=sglang@*.service) add_unit "${line#Id=}" ;; esac
    done <"$shown"
}

# Sets what systemd showed of the unit of a service: its state, its main process, how often it was
# started again by itself, its drop-ins.
read_unit() {
    id='' state='' main_pid=0 again=0 drop_ins=''
    while IFS='=' read -r key value; do
        case $key in
            Id) id=$value ;;
            ActiveState) state=$value ;;
            MainPID) main_pid=$value ;;
            NRestarts) again=$value ;;
            DropInPaths) drop_ins=$value ;;
            '')
                [ "$id" != "sglang@$1.service" ] || return
                id='' state='' main_pid=0 again=0 drop_ins=''
                ;;
        esac
    done <"$shown"
    [ "$id" = "sglang@$1.service" ] || state='' main_pid=0 again=0 drop_ins=''
}

# link_of DIRECTORY current|previous: prints where it leads. A switch that was cut between its two
# renames has left the second one's new link alone (templates/links.sh).
link_of() {
    if [ "$2" = previous ] && [ -L "$1/.previous" ] && [ ! -L "$1/.current" ] \
        && [ "$(readlink "$1/.previous")" != "$(readlink "$1/current")" ]; then
        readlink "$1/.previous"
    else
        readlink "$1/$2"
    fi
}

# Prints the service, where its links point, the numbers of its deployments, and when their plans,
# their records and what their gates saw were written.
deployment() {
    echo "$1"
    [ -d "$deployments/$1" ] || return 127
    [ -x "$deployments/$1" ] && [ -r "$deployments/$1" ] || return 13
    [ -z "$now" ] || echo "current $now"
    [ -z "$before" ] || echo "previous $before"
    for dir in "$deployments/$1"/*/; do
        dir=${dir%/}
        [ -L "$dir" ] || echo "number ${dir##*/}"
    done
    cd "$deployments/$1" || return 13
    set -- [0-9]*/plan.json [0-9]*/record.json [0-9]*/start.json
    # What matches nothing stays as its pattern, and is no file.
    stat -c 'written %Y %n' "$@" 2>/dev/null
    return 0
}

# Prints the numbers of the service's deployments whose texts were asked for, the newest first,
# without the current one: that one is read whatever was asked.
past_of() {
    [ "$history" -gt 0 ] || [ -L "$deployments/$1/.current" ] || return 0
    {
        # Of one whose switch was cut files may be in their places already.
        ! [ -L "$deployments/$1/.current" ] || readlink "$deployments/$1/.current" | grep -xE '[0-9]{1,9}'
        [ -z "$whole" ] || wanted_of "$1"
        for dir in "$deployments/$1"/[0-9]*/; do
            dir=${dir%/}
            echo "${dir##*/}"
        done | grep -xE '[0-9]{1,9}' | grep -vx "${now##*/}" | sort -rn | sed "$((history + 1)),\$d"
    } | awk '!seen[$0]++'
}

# Prints the number of the deployment of which every file is wanted.
wanted_of() {
    case $whole in
        back)
            # One that was gone back to, and whose record was not written, is gone on with.
            back=$deployments/$1/current
            [ ! -L "$back/back" ] || { readlink "$back"; return 0; }
            [ -z "$before" ] || echo "${before##*/}"
            ;;
        previous) [ -z "$before" ] || echo "${before##*/}" ;;
        *) echo "$whole" ;;
    esac
}

# Reads the texts of a deployment that is not the current one; all of its files where it is whole.
past() {
    wanted=
    [ -z "$whole" ] || wanted=$(wanted_of "$1")
    for path in "$deployments/$1/$2"/*; do
        [ -f "$path" ] || [ -L "$path" ] || continue
        case $deployment_texts$past_texts in
            *" ${path##*/} "*) text "$path" ;;
            *)
                [ "$2" = "$wanted" ] || continue
                # The unit of a runtime may have the service's own name.
                case $path in *.service) text "$path" ;; *) of_deployment "$path" ;; esac
                ;;
        esac
    done
    if [ "$2" = "$wanted" ] && [ -f "$deployments/$1/$2/$launch" ]; then
        space "$(model_of "$deployments/$1/$2")"
    fi
}

# Prints where the model of the deployment in a directory lies.
model_of() {
    read_launch "$1/$launch"
    case $model in
        /*) echo "$model" ;;
        *)
            commit=$(sed -n 's/^revision: //p' "$1/server.yaml" | tr -d "\"'")
            hub=$hub_home/hub/models--$(echo "$model" | sed 's|/|--|g')
            echo "$hub/snapshots/$commit"
            ;;
    esac
}

# Sets what the settings of a deployment say: where it listens, what it serves.
read_launch() {
    address='' port='' ready='' config='' model='' hub_home=''
    [ -r "$1" ] || return
    while IFS= read -r line; do
        value=${line#*=}
        value=${value#[\"\']}
        value=${value%[\"\']}
        case $line in
            SGLANG_ADDRESS=*) address=$value ;;
            SGLANG_PORT=*) port=$value ;;
            SGLANG_READY_PATH=*) ready=$value ;;
            SGLANG_CONFIG=*) config=$value ;;
            SGLANG_MODEL=*) model=$value ;;
            SGLANG_WEIGHTS=*) hub_home=$value ;;
        esac
    done <"$1"
}

# Prints the header with the key that the server's own configuration FILE holds, if it holds one:
# for a client's standard input or a file of ours, never for an argument list.
authorization() {
    [ -r "$1" ] || return 0
    while IFS= read -r line; do
        case $line in 'api-key: "'*'"')
            line=${line#*\"}
            printf 'Authorization: Bearer %s\n' "${line%\"}"
            ;;
        esac
    done <"$1"
}

# ask URL CLIENT CONFIG: prints the HTTP status and then the body of an answer; no proxy is for one's own address.
ask() {
    unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
    : >"$P.body"
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
    [ ! -s "$P.body" ] || head -c 65536 "$P.body"
}

# Asks a service that listens as its settings say, which were read.
answer() {
    client=$(http_client) || return
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

# Prints the service, and of its log's end and the kernel's only what tells how it ended.
# systemd up to 249 calls a unit by its description alone.
last_lines() {
    echo "$1"
    have journalctl || return 127
    limit journalctl --unit="sglang@$1.service" -n 3000 -o cat --no-pager 2>/dev/null | grep -E \
        -e '^(stop|ready) gate: ' -e "^(Starting|Started|Stopping|Stopped) (sglang@|SGLang server $1\\.+\$)" \
        -e '^sglang@[^ ]*: (Main process|Control process|Failed|Deactivated|start|State|A process)' \
        -e 'Remaining number of requests|Force exiting|SIGQUIT received|crashed with exit code' \
        | tail -n 60 | cut -c1-300
    limit journalctl --dmesg -n 5000 -o cat --no-pager 2>/dev/null | grep '^oom-kill:' \
        | grep -F "sglang-$1.slice" | tail -n 3 | cut -c1-600
    return 0
}

services() {
    names=
    services_there
    foreign=' '
    for name in $names; do
        service "$name"
    done
    wait
}

# One service: what runs, and the files of the deployment that it is to run from.
service() {
    home=$deployments/$1
    read_unit "$1"
    now='' before=''
    [ ! -L "$home/current" ] || now=$(readlink "$home/current")
    [ ! -L "$home/previous" ] && [ ! -L "$home/.previous" ] || before=$(link_of "$home" previous)
    # By the path that the caller knows, also where a directory above it is a link elsewhere.
    current=$home/${now##*/}
    [ -n "$now" ] || current=$home/none
    read_launch "$current/$launch"
    if [ -f "$current/$launch" ] && [ "$state" = active ]; then
        # One service that does not answer must not hold up the next.
        (
            P=$P-answer-$1
            answer "$1"
        ) &
    fi
    if [ "${main_pid:-0}" != 0 ]; then
        item main.began began "sglang@$1.service" "$main_pid"
        item main.deployment started_from "sglang@$1.service" "$main_pid"
    fi
    for path in $drop_ins; do
        case $path in */"$dropin_text") continue ;; esac
        case $foreign in *" $path "*) continue ;; esac
        foreign="$foreign$path "
        item dropin.keys dropin_keys "$path"
    done
    if [ -n "$state" ] && [ "$state" != active ] || [ "${again:-0}" != 0 ]; then
        item last.lines last_lines "$1"
    fi
    item deployment deployment "$1"
    for path in "$current"/*; do
        [ -f "$path" ] || [ -L "$path" ] || continue
        case $deployment_texts in
            *" ${path##*/} "*) text "$path" ;;
            *) of_deployment "$path" ;;
        esac
    done
    # A configuration with keys stands apart; its checksum is that of a slow one of each key.
    case $config in
        "$current"/* | '') ;;
        *) file "$config" ;;
    esac
    for number in $(past_of "$1"); do
        past "$1" "$number"
    done
    drop_in_dir=${dropins%%%*}$1${dropins#*%}
    for path in "$drop_in_dir"/*.conf; do
        [ -e "$path" ] || continue
        case ${path##*/} in
            "$dropin_text") text "$path" ;;
            *) file "$path" ;;
        esac
    done
    # A unit of its own, beside the template; whoever asks for its text gets it elsewhere.
    [ ! -e "${drop_in_dir%.d}" ] || file "${drop_in_dir%.d}"
    states
}

# ---- the door ---------------------------------------------------------------------------------

# Prints where the link to the door's settings leads, its unit's state, and what it says itself.
door_state() {
    ! [ -L "$door/current" ] || echo "link $(readlink "$door/current")"
    [ ! -f /run/sglang-door/state ] || head -c 65536 /run/sglang-door/state | sed 's/^/state /'
    limit systemctl show --property=LoadState,ActiveState,UnitFileState,MainPID \
        --property=StateChangeTimestamp,NeedDaemonReload sglang-door.service
}

# Prints the certificate that the door is to have, and before it whether its key fits: of the key
# nothing leaves the node, so nothing of a file that holds both.
door_tls() {
    [ -e "$tls" ] || return 127
    [ -r "$tls" ] || return 13
    if grep -q 'PRIVATE KEY' "$tls"; then
        echo holds-key
        return
    fi
    word=unknown
    if [ ! -e "$tls_key" ]; then
        word=absent
    elif [ ! -r "$tls_key" ]; then
        word=unreadable
    elif grep -q ENCRYPTED "$tls_key"; then
        word=encrypted
    else
        own=$(sed -n 's/^SGLANG_ENVIRONMENT="\(.*\)"$/\1/p' "$door/current/door.env" 2>/dev/null)
        for python in python3 "${own:-/nonexistent}/bin/python3"; do
            have "$python" || continue
            limit "$python" -I -c 'import ssl, sys
try:
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*sys.argv[1:], password="")
except (OSError, ValueError):
    sys.exit(3)' "$tls" "$tls_key" 2>/dev/null </dev/null
            case $? in
                0) word=fits ;;
                3) word=differs ;;
                *) continue ;;
            esac
            break
        done
        if [ "$word" = unknown ] && have openssl; then
            word=differs
            of_key=$(limit openssl pkey -in "$tls_key" -passin pass: -pubout 2>/dev/null)
            [ -z "$of_key" ] || [ "$of_key" != "$(limit openssl x509 -in "$tls" -noout -pubkey)" ] || word=fits
        fi
    fi
    echo "$word"
    head -c 262144 "$tls"
}

door() {
    [ -z "$tls" ] || item door.tls door_tls
    [ -n "$door" ] && { [ -e "$door" ] || [ -e /etc/systemd/system/sglang-door.service ]; } || return
    item door door_state
    for path in "$door"/current/*; do
        case $path in
            */door.json) text "$path" ;;
            *) [ ! -f "$path" ] || file "$path" ;;
        esac
    done
    states
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
import os, sys, sysconfig
include = sysconfig.get_path("include")
print(sys.version.split()[0])
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
    # What FlashInfer and nvcc itself want beyond these; a small toolkit does not have all of it.
    for name in nvvm/bin/cicc include/cublasLt.h include/curand.h include/nvrtc.h; do
        [ -e "$1/$name" ] || echo "lacks $name"
    done
    [ -f "$1/version.json" ] && sed -n '/"cuda"/,/}/s/.*"version" *: *"\([^"]*\)".*/version \1/p' \
        "$1/version.json"
    return 0
}

toolchain() {
    plain=
    for name in python3 python3.10 python3.11 python3.12 python3.13 python3.14; do
        lookup "$name" || continue
        # Under its second name it is not asked again.
        # shellcheck disable=SC3013 # POSIX has -ef since 2024, dash, busybox and bash for long
        [ -n "$plain" ] && [ "$found" -ef "$plain" ] && continue
        [ "$name" != python3 ] || plain=$found
        item python python_state "$found"
    done
    for path in "$pythons"/*/bin/python3; do
        [ -x "$path" ] && item python python_state "$path"
    done
    # A unit has no login's PATH: what it would find is told as well.
    for name in g++ c++ gcc clang++; do
        lookup "$name" && item compiler program_state "$found"
        path=$found
        lookup "$name" /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        [ -z "$found" ] || [ "$found" = "$path" ] || item compiler program_state "$found"
    done
    # An older one beside it may be named to the server where the plain one is too new for CUDA.
    for path in /usr/local/bin/g++-[0-9]* /usr/bin/g++-[0-9]*; do
        [ -x "$path" ] && item compiler program_state "$path"
    done
    lookup nvcc
    for path in "$found" /usr/local/cuda*/bin/nvcc "${CUDA_HOME:-/none}/bin/nvcc"; do
        [ -x "$path" ] && item nvcc program_state "$path"
    done
    for path in "${CUDA_HOME:-}" /usr/local/cuda*; do
        [ -n "$path" ] && [ -d "$path" ] && item cuda-home cuda_home "$path"
    done
    item ninja limit ninja --version
}

# Prints the libraries that the loader knows, of those that matter: the name, then the path.
libraries() {
    limit ldconfig -p >"$P.known" || return
    awk '
        ($1 == "libcuda.so.1" || $1 == "libcuda.so" || $1 == "libnuma.so.1") \
            && /\(.*(x86-64|AArch64).*\) => / && !($1 in path) {
            path[$1] = $NF
            print $1, $NF
        }' "$P.known"
}

package_manager() {
    path_of apt-get || path_of dnf
}

account_state() {
    echo "$1"
    have getent || return 127
    getent passwd "$1"
    rc=$?
    [ "$rc" = 2 ] || return "$rc"
}

tools_there() {
    [ -d "$tools" ] || return 127
    [ -r "$tools" ] && [ -x "$tools" ] || return 13
    for path in "$tools"/*; do
        [ -f "$path" ] && [ -x "$path" ] && echo "$path"
    done
    return 0
}

# Prints an environment, its mark in a line, which of its parts are there, and what its packages
# are now and were not when it was marked, or the other way round. Only two directories are read.
environment_state() {
    echo "$1"
    [ -r "$1" ] && [ -x "$1" ] || return 13
    [ ! -f "$1/environment.json" ] || echo "mark $(head -c 65536 "$1/environment.json" | tr '\n' ' ')"
    [ -x "$1/bin/python3" ] && echo 'part bin/python3'
    include=$(sed -n 's/.*"include": *"\([^"]*\)".*/\1/p' "$1/environment.json" 2>/dev/null)
    [ -n "$include" ] && [ -e "$include/Python.h" ] && echo 'part Python.h'
    for packages in "$1"/lib/python3*/site-packages; do
        [ -d "$packages" ] || continue
        echo "site ${packages#"$1/"}"
        echo "time $(stat -c %Y "$packages")"
        for cuda in "$packages"/nvidia/cu[0-9]*; do
            for name in bin/nvcc nvvm/bin/cicc lib64 lib64/libcudart.so lib/stubs/libcuda.so; do
                [ -e "$cuda/$name" ] && echo "cuda ${cuda##*/}/$name"
            done
        done
        [ -f "$1/packages.txt" ] || continue
        for path in "$packages"/*.dist-info; do
            echo "${path##*/}"
        done | sort >"$P.packages"
        echo 'compared'
        grep -vxFf "$1/packages.txt" "$P.packages" | head -n 50 | sed 's/^/more /'
        grep -vxFf "$P.packages" "$1/packages.txt" | head -n 50 | sed 's/^/less /'
    done
    return 0
}

environments() {
    item libraries libraries
    item package-manager package_manager
    [ -z "$account" ] || item account account_state "$account"
    [ -z "$tools" ] || item tools tools_there
    [ -n "$environments" ] && [ -e "$environments" ] || return
    if [ ! -r "$environments" ] || [ ! -x "$environments" ]; then
        item environments.closed closed
        return
    fi
    for path in "$environments"/*; do
        [ -d "$path" ] && [ ! -L "$path" ] && item environment environment_state "$path"
    done
}

closed() { return 13; }

# ---- all of it, side by side ------------------------------------------------------------------

start nvidia-smi-query smi_query
start nvidia-smi-xml smi_xml
start docker docker_engine
start docker-images docker_images
start docker-containers docker_containers
start services services
start door door
start toolchain toolchain
start environments environments
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
    # Each look costs a process: where the first second was not enough there are fewer.
    nap=0.25
    [ "$hundredths" -gt $((started + 100)) ] || nap=0.1
    sleep "$nap" 2>/dev/null || sleep 1
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
# What is missing then would be taken for what is not there.
if [ ! -e "$T/room" ]; then
    refuse "no room was left in $base"
    exit 0
fi
{
    echo "sglang-survey 1 $version"
    sections
    clock
    echo '@ parts rc=0'
    echo " hundredths $((hundredths - started))"
    for name in $unfinished; do
        read -r line <"$T/$name.part"
        echo " unfinished $line"
    done
    echo '@ end'
} | plain
exit 0
