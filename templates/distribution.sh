# Packages of the distribution. Its package manager may be at work: it is waited for.
manager=
for name in apt-get dnf; do
    command -v "$name" >/dev/null 2>&1 && manager=$name && break
done

# Prints who holds one of the package manager's locks; ends with 1 where nobody does.
holder() {
    for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock \
        /var/cache/apt/archives/lock /var/lib/rpm/.rpm.lock; do
        [ -e "$file" ] || continue
        held_by=$(awk -v inode="$(stat -c %i "$file")" '
            $2 != "->" { n = split($6, part, ":"); if (part[n] == inode) { print $5; exit } }
        ' /proc/locks 2>/dev/null)
        [ -n "$held_by" ] || continue
        echo "$(cat "/proc/$held_by/comm" 2>/dev/null || echo a process) (pid $held_by) holds $file"
        return 0
    done
    for file in /var/cache/dnf/*_lock.pid /var/run/dnf.pid; do
        [ -f "$file" ] && held_by=$(cat "$file") && [ -d "/proc/$held_by" ] || continue
        echo "$(cat "/proc/$held_by/comm" 2>/dev/null || echo a process) (pid $held_by) holds $file"
        return 0
    done
    return 1
}

wait_for_locks() {
    waited=0
    while who=$(holder); do
        if [ $((waited % 15)) -eq 0 ]; then
            say "waits for the package manager: $who" || exit 1
        fi
        [ "$waited" -lt "${lock_patience:-600}" ] || return 1
        sleep 1 9>&-
        waited=$((waited + 1))
    done
    [ "$waited" -eq 0 ] || say "the package manager is free after $waited s"
}

# Nothing asks, no service is restarted, no configuration is replaced.
apt() {
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 NEEDRESTART_MODE=l apt-get -q -y \
        -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@"
}

# What was killed within dpkg keeps apt from everything; both are told to go on where it stopped.
# Nothing is removed by that.
end_interrupted() {
    if [ -n "$(find /var/lib/dpkg/updates -name '[0-9]*' 2>/dev/null)" ]; then
        say 'dpkg was interrupted before: it goes on where it stopped'
        follow 'still configuring' dpkg --force-confold --configure -a
    fi
    follow 'still checking the packages' apt check && return
    say 'packages are half-installed: they are installed whole'
    follow 'still installing what is missing' apt --fix-broken --no-remove install
}

# install_packages NAME...: the lists are fetched only where the ones that are there do not do.
install_packages() {
    wait_for_locks || return 1
    if [ "$manager" = dnf ]; then
        follow "still installing $*" dnf -q -y --setopt=install_weak_deps=False install "$@"
        return
    fi
    [ "$manager" = apt-get ] || return 1
    follow "still installing $*" apt install --no-install-recommends "$@" && return
    wait_for_locks || return 1
    : >"$log"
    follow "still fetching the lists of packages" apt update
    wait_for_locks || return 1
    end_interrupted
    follow "still installing $*" apt install --no-install-recommends "$@"
}

# Prints in one line why a package manager failed.
said_last() {
    who=$(holder) && echo "$who" && return
    grep -E '^(E:|Error:|error:)' "$log" | tail -n 1 | cut -c 1-300
}
