package main

import (
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	limit    = 100
	tabWidth = 4
)

// width returns how many columns a line has.
func width(line string) int {
	return utf8.RuneCountInString(line) + (tabWidth-1)*strings.Count(line, "\t")
}

// Wrap returns the source with no line wider than limit, as far as that is possible.
func Wrap(source string) (string, error) {
	for range 20 { // each pass breaks a line once
		before := source
		lines, err := scan(source)
		if err != nil {
			return "", err
		}
		var out []string
		for i := 0; i < len(lines); i++ {
			if lines[i].isComment() {
				end := i
				for end < len(lines) && lines[end].isComment() &&
					lines[end].indent() == lines[i].indent() {
					end++
				}
				out = append(out, fill(lines[i:end])...)
				i = end - 1
				continue
			}
			out = append(out, lines[i].broken()...)
		}
		if source = strings.Join(out, "\n"); source == before {
			break
		}
	}
	return source, nil
}

// line is a line of source.
type line struct {
	text   string
	raw    bool // a raw string goes on into this line, or a comment of several lines
	tokens []tokenAt
}

// tokenAt is a token that begins in a line.
type tokenAt struct {
	token token.Token
	text  string
	at    int // offset in the line, in bytes
}

func (l *line) end(i int) int { return l.tokens[i].at + len(l.tokens[i].text) }

func (l *line) indent() string {
	return l.text[:len(l.text)-len(strings.TrimLeft(l.text, "\t"))]
}

func (l *line) isComment() bool {
	return !l.raw && len(l.tokens) == 1 && l.tokens[0].token == token.COMMENT &&
		strings.HasPrefix(l.tokens[0].text, "//")
}

// scan splits a source into lines with their tokens.
func scan(source string) ([]line, error) {
	var lines []line
	for _, text := range strings.Split(source, "\n") {
		lines = append(lines, line{text: text})
	}
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var errors scanner.ErrorList
	var s scanner.Scanner
	s.Init(file, []byte(source), errors.Add, scanner.ScanComments)
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return lines, errors.Err()
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue
		}
		if text == "" {
			text = kind.String()
		}
		at := file.Position(pos)
		lines[at.Line-1].tokens = append(lines[at.Line-1].tokens,
			tokenAt{kind, text, at.Column - 1})
		for further := range strings.Count(text, "\n") {
			lines[at.Line+further].raw = true
		}
	}
}

// directive is a comment that is not text.
var directive = regexp.MustCompile(`^//(\S|$)`)

// item is the beginning of an element of a list.
var item = regexp.MustCompile(`^( *)([-*•]|\d+\.) +`)

// fill fills the paragraphs of a comment that have a line that is too wide.
func fill(lines []line) (out []string) {
	for i := 0; i < len(lines); {
		end := i + 1
		for end < len(lines) && continues(lines[i].text, lines[end].text) {
			end++
		}
		out = append(out, paragraph(lines[i:end])...)
		i = end
	}
	return out
}

// content returns what follows the slashes and one space.
func content(text string) string {
	return strings.TrimPrefix(strings.TrimPrefix(strings.TrimLeft(text, "\t"), "//"), " ")
}

// continues reports whether a line of a comment belongs to the paragraph that begins with first.
func continues(first, next string) bool {
	if directive.MatchString(strings.TrimLeft(first, "\t")) ||
		directive.MatchString(strings.TrimLeft(next, "\t")) {
		return false
	}
	first, next = content(first), content(next)
	if next == "" || item.MatchString(next) {
		return false
	}
	if head := item.FindString(first); head != "" {
		return strings.HasPrefix(next, strings.Repeat(" ", len(head))) ||
			!strings.HasPrefix(next, " ")
	}
	return !isPreformatted(first) && !isPreformatted(next)
}

func isPreformatted(content string) bool {
	return strings.HasPrefix(content, "\t") || strings.HasPrefix(content, " ")
}

// paragraph fills one paragraph, or returns it as it is.
func paragraph(lines []line) (out []string) {
	wide, words := false, []string(nil)
	for _, l := range lines {
		out = append(out, l.text)
		wide = wide || width(l.text) > limit
		words = append(words, strings.Fields(content(l.text))...)
	}
	first := content(lines[0].text)
	head := item.FindString(first)
	if !wide || head == "" && isPreformatted(first) ||
		directive.MatchString(strings.TrimLeft(lines[0].text, "\t")) {
		return out
	}
	start := lines[0].indent() + "// "
	hanging := start + strings.Repeat(" ", len(head))
	if head != "" {
		start += head
		words = words[1:]
	}
	out = nil
	text := start
	for i, word := range words {
		switch {
		case i == 0 || strings.HasSuffix(text, " "):
			text += word
		case width(text)+1+width(word) <= limit:
			text += " " + word
		default:
			out = append(out, text)
			text = hanging + word
		}
	}
	return append(out, text)
}
