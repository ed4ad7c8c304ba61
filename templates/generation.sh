# generation PATH BODY_FILE: one ordinary generation from "$base", printed as http prints it.
# What is asked is sampled: any model may end an answer with its first token. Once, that says
# nothing, and is asked again; three times running it is what this server does.
generation() {
    for _ in 1 2 3; do
        generated=$(http POST "$base$1" 300 "$2")
        printf '%s\n' "$generated" | grep -q '"completion_tokens": *1[,}]' || break
    done
    printf '%s\n' "$generated"
}
