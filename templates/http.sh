# http METHOD URL LIMIT_SECONDS [BODY_FILE]: prints the body, then a line with the status
# (000 where nothing answered). Asks with whichever of curl, python3 and wget is there.
http() {
    if command -v curl >/dev/null 2>&1; then
        if [ -n "${4:-}" ]; then
            curl -sS -g --noproxy '*' --max-time "$3" -X "$1" -H 'Content-Type: application/json' \
                --data-binary "@$4" -w '\n%{http_code}\n' "$2" 2>/dev/null </dev/null
        else
            curl -sS -g --noproxy '*' --max-time "$3" -w '\n%{http_code}\n' "$2" 2>/dev/null </dev/null
        fi
    elif command -v python3 >/dev/null 2>&1; then
        python3 -c '
import sys, urllib.error, urllib.request
method, url, limit, body = sys.argv[1:5]
data = open(body, "rb").read() if body else None
request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(request, timeout=float(limit))
except urllib.error.HTTPError as error:
    answer = error
except Exception:
    print("\n000")
    sys.exit(0)
sys.stdout.write(answer.read().decode("utf-8", "replace") + "\n" + str(answer.status) + "\n")
' "$1" "$2" "$3" "${4:-}" 2>/dev/null </dev/null
    elif [ -n "${4:-}" ]; then
        # wget tells no status but of success.
        wget -q -T "$3" -O - --header='Content-Type: application/json' --post-file="$4" "$2" \
            2>/dev/null </dev/null && printf '\n200\n' || printf '\n000\n'
    else
        wget -q -T "$3" -O - "$2" 2>/dev/null </dev/null && printf '\n200\n' || printf '\n000\n'
    fi
}
