# Leaving the door's rotation and coming back: nothing where no door is, or where it has no such server.
door_state=/run/sglang-door/state
door_out=/run/sglang/door

# door_has NAME: whether a door that runs has this server.
door_has() {
    [ -d "$door_out" ] && grep -q "^server $1 " "$door_state" 2>/dev/null
}

# door_says NAME WORD SECONDS: waits until the door says that a server is so.
door_says() {
    left=$(($3 * 2))
    until grep -q "^server $1 $2" "$door_state" 2>/dev/null; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.5
    done
}

# door_pair SECONDS: waits until a prefill/decode pair generates behind the door; prints what the door
# says of it in the end: answers, tried, fails, or nobody where a half of a kind is not there.
door_pair() {
    left=$(($1 * 2))
    until grep -q '^pair answers$' "$door_state" 2>/dev/null; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || break
        sleep 0.5
    done
    sed -n 's/^pair //p' "$door_state" 2>/dev/null
}

# door_leave NAME WHY: takes a server out of rotation; one that somebody holds out stays so. What a cut
# run left behind, and the door does not heed any more, is written over.
door_leave() {
    door_has "$1" || return 0
    if [ ! -e "$door_out/$1" ] || { door_holds "$1" away && ! door_says "$1" out- 0; }; then
        echo "$2" >"$door_out/$1" || return 1
    fi
    if ! door_says "$1" out- 30; then
        echo "the door did not take $1 out of rotation within 30 s: journalctl -u sglang-door"
        return 1
    fi
    # What the door had just chosen it for reaches it.
    sleep 1
    echo "$1 is out of the door's rotation: new requests wait there, or go to others"
}

# door_holds NAME WHY: whether that is why a server is to be out.
door_holds() {
    [ -e "$door_out/$1" ] && [ "$(cut -d' ' -f1 "$door_out/$1" 2>/dev/null)" = "$2" ]
}

# door_return NAME WHY: lets a server back in, only where that is why it is out.
door_return() {
    ! door_holds "$1" "$2" || rm -f -- "$door_out/$1"
}
