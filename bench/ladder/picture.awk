# ladder.csv -> ladder.svg: a bar a rung, time on a logarithmic axis from 0.01 ms; the copy is a line.
BEGIN { FS = "," }
NR > 1 && $1 == "copy" { bound = $2; next }
NR > 1 { name[++n] = $1; ms[n] = $2 }
function at(t) { return 250 + 62 * (log(t) / log(10) + 2) }
function text(t) { return t >= 1000 ? sprintf("%.3g s", t / 1000) : t >= 1 ? sprintf("%.3g ms", t) : sprintf("%.3g us", 1000 * t) }
END {
    height = 26 * n + 46
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 %d\" font-family=\"sans-serif\" font-size=\"13\">\n", height
    print "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    for (d = -2; d <= 7; ++d)
        printf "<line x1=\"%g\" x2=\"%g\" y1=\"6\" y2=\"%d\" stroke=\"#ddd\"/>\n", at(10 ^ d), at(10 ^ d), height - 30
    for (i = 1; i <= n; ++i) {
        y = 26 * i - 16
        printf "<text x=\"242\" y=\"%d\" text-anchor=\"end\">%s</text>\n", y + 13, name[i]
        printf "<rect x=\"250\" y=\"%d\" width=\"%.1f\" height=\"18\" fill=\"%s\"/>\n", y, at(ms[i]) - 250, name[i] ~ /^cpu/ ? "#8da0cb" : "#66c2a5"
        printf "<text x=\"%.1f\" y=\"%d\">%s</text>\n", at(ms[i]) + 6, y + 13, text(ms[i])
    }
    if (bound) {
        printf "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"6\" y2=\"%d\" stroke=\"#d53e4f\" stroke-dasharray=\"5 3\"/>\n", at(bound), at(bound), height - 30
        printf "<text x=\"%.1f\" y=\"%d\" fill=\"#d53e4f\">device copy of the same bytes: %s</text>\n", at(bound) + 4, height - 10, text(bound)
    }
    print "</svg>"
}
