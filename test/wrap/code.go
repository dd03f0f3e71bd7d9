package main

import (
	"go/token"
	"strings"
)

// broken returns the line, broken once if it is too wide.
func (l *line) broken() []string {
	if l.raw || width(l.text) <= limit || len(l.tokens) == 0 {
		return []string{l.text}
	}
	if last := len(l.tokens) - 1; last > 0 && l.tokens[last].token == token.COMMENT &&
		!strings.Contains(l.tokens[last].text, "nolint") &&
		!strings.Contains(l.tokens[last].text, "\n") {
		return l.withoutComment(last)
	}
	at := l.breakPoint()
	if at == 0 {
		return []string{l.text}
	}
	return []string{strings.TrimRight(l.text[:at], " "), l.indent() + "\t" +
		strings.TrimLeft(l.text[at:], " ")}
}

// withoutComment puts the comment of a line above it, or into the block that the line begins.
func (l *line) withoutComment(last int) []string {
	comment := l.tokens[last].text
	code := strings.TrimRight(l.text[:l.tokens[last].at], " \t")
	switch l.tokens[last-1].token {
	case token.LBRACE, token.LPAREN, token.COLON:
		return []string{code, l.indent() + "\t" + comment}
	default:
		return []string{l.indent() + comment, code}
	}
}

// breakPoint returns behind which byte the line is best broken, and 0 if there is no place.
func (l *line) breakPoint() (best int) {
	const (
		perLevel = 60 // columns that a level of brackets less is worth
		bracket  = 80 // what a break behind an opening bracket costs
		least    = 30 // columns that a part must have
	)
	depth, lowest := 0, 0
	assigned := !l.assigns()
	bestCost := 1 << 30
	for i, t := range l.tokens[:len(l.tokens)-1] {
		cost, here := 0, depth
		switch t.token {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
			cost = bracket
			if t.token != token.LPAREN {
				continue
			}
			here = depth
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
			lowest = min(lowest, depth)
			continue
		case token.ASSIGN, token.DEFINE:
			assigned = true
			continue
		case token.COMMA:
			if !assigned && depth == 0 {
				continue
			}
		case token.LAND, token.LOR:
			cost = -4
		case token.ADD, token.OR:
			if !isOperand(l.tokens, i-1) {
				continue
			}
		default:
			continue
		}
		column := width(l.text[:l.end(i)])
		if column > limit || column < least || width(l.text[l.end(i):]) < 4 {
			continue
		}
		cost += (here-lowest)*perLevel + limit - column
		if cost < bestCost {
			best, bestCost = l.end(i), cost
		}
	}
	return best
}

// assigns reports whether the line has an assignment outside of brackets.
func (l *line) assigns() bool {
	depth := 0
	for _, t := range l.tokens {
		switch t.token {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
		case token.ASSIGN, token.DEFINE:
			if depth == 0 {
				return true
			}
		}
	}
	return false
}

// isOperand reports whether a token ends an operand, so that an operator behind it is binary.
func isOperand(tokens []tokenAt, i int) bool {
	if i < 0 {
		return false
	}
	switch tokens[i].token {
	case token.IDENT, token.INT, token.FLOAT, token.CHAR, token.STRING, token.RPAREN, token.RBRACK,
		token.RBRACE:
		return true
	default:
		return false
	}
}
