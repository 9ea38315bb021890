#!/bin/sh
# docs.sh accepts a document that is in order and refuses each that is not.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/docs"
status=0
printf 'int main() {\n    // [first]\n    int x = 1;\n    if (x) {\n        x = 2;\n    }\n    // [/first]\n}\n' >"$folder/code.cpp"

expect() { # expect accepted|refused DESCRIPTION, with the README's text on standard input
    cat >"$folder/README.md"
    if sh "$here/docs.sh" "$folder" >"$folder/log" 2>&1; then result=accepted; else result=refused; fi
    if [ "$result" != "$1" ]; then
        echo "docs.sh: expected $1, got $result: $2"
        cat "$folder/log"
        status=1
    fi
}

expect accepted "a copy" <<'EOF'
Text, [a link](docs) and [another](https://example.org/x).

<!-- from code.cpp first -->
```cpp
int x = 1;
if (x) {
    x = 2;
}
```

<!-- not compiled: a sketch -->
```cpp
whatever
```

```sh
sh tests/run.sh
```
EOF
expect refused "a changed copy" <<'EOF'
<!-- from code.cpp first -->
```cpp
int x = 3;
if (x) {
    x = 2;
}
```
EOF
expect refused "a copy of nothing" <<'EOF'
<!-- from code.cpp second -->
```cpp
int x = 1;
```
EOF
expect refused "a block without a source" <<'EOF'
<!-- from code.cpp first -->
Text in between.
```cpp
int x = 1;
if (x) {
    x = 2;
}
```
EOF
expect accepted "a part of another file" <<'EOF'
<!-- part of code.cpp -->
```
    int x = 1;
    if (x) {
```
EOF
expect refused "what is no part of another file" <<'EOF'
<!-- part of code.cpp -->
```
    int x = 1;
    if (y) {
```
EOF
expect refused "a broken link" <<'EOF'
See [here](docs/nowhere.md#part).
EOF
expect refused "a link to a heading that is not there" <<'EOF'
# The `first` part, and [more](docs)
See [below](#the-first-part).
EOF
expect accepted "a link to a heading" <<'EOF'
# The `first` part, and [more](docs)
See [above](#the-first-part-and-more) and [there](README.md#the-first-part-and-more).
EOF
exit $status
