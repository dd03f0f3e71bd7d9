package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"holdfast/client"
)

// operation is a command of a transaction, parsed from one line.
type operation struct {
	verb, key string
	op        client.Op
}

// readOperations reads the text form of a transaction.
func readOperations(ctx context.Context, in io.Reader,
	fenced []client.Option,
) (operations []operation, err error) {
	for number, text := range readLines(ctx, in) {
		if text.err != nil {
			return nil, fmt.Errorf("read the transaction: %w", text.err)
		}
		words, err := splitWords(strings.TrimPrefix(string(text.line), byteOrderMark))
		if err == nil && len(words) > 0 {
			var read operation
			read, err = readOperation(words, fenced)
			operations = append(operations, read)
		}
		if err != nil {
			return nil, &usageError{fmt.Errorf("line %d: %w", number, err)}
		}
	}
	switch {
	case len(operations) == 0:
		return nil, usagef("the transaction has no command")
	case len(operations) > client.MaxOps:
		return nil, usagef("the transaction has %d commands, and may have %d", len(operations),
			client.MaxOps)
	}
	return operations, checkKeys(operations)
}

// checkKeys returns an error if two operations write the same key, or one reads a key that another
// writes. The store would report that only as a syntax error.
func checkKeys(operations []operation) error {
	verbs := make(map[string][]string) // by key
	for _, o := range operations {
		earlier := verbs[o.key]
		if len(earlier) > 0 &&
			(o.verb != "get" ||
				slices.ContainsFunc(earlier, func(verb string) bool { return verb != "get" })) {
			return usagef("key %q: a transaction may write a key once, or read it, and not both",
				o.key)
		}
		verbs[o.key] = append(earlier, o.verb)
	}
	return nil
}

// byteOrderMark is what some editors put at the beginning of a file.
const byteOrderMark = "\ufeff"

// readOperation reads a command of a transaction.
func readOperation(words []string, fenced []client.Option) (operation, error) {
	var set setFlags
	var version ifVersion
	read, values := operation{verb: words[0]}, 0
	flags := pflag.NewFlagSet(read.verb, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	switch read.verb {
	case "set":
		values = 1
		set.add(flags)
	case "vdel":
		values = 1
	case "del":
		version.add(flags)
	case "get":
	default:
		return read, fmt.Errorf("%q: want set, get, del or vdel", read.verb)
	}
	if err := flags.Parse(words[1:]); err != nil {
		// not wrapped: --help is no request for help here
		return read, fmt.Errorf("%v (-- goes before a key or value that begins with -)", err)
	}
	if got := flags.NArg(); got != 1+values {
		return read, fmt.Errorf("%s with %d arguments, want %d", read.verb, got, 1+values)
	}
	var value []byte
	var options []client.Option
	var err error
	switch read.verb {
	case "set":
		options, err = set.options(flags)
	case "del":
		options, err = version.options(flags)
	}
	if err == nil && values > 0 {
		value, err = valueOrFile(flags.Arg(1))
	}
	options = append(options, fenced...)
	read.key = flags.Arg(0)
	switch read.verb {
	case "set":
		read.op = client.OpSet(read.key, value, options...)
	case "vdel":
		read.op = client.OpVDel(read.key, value, options...)
	case "del":
		read.op = client.OpDel(read.key, options...)
	default:
		read.op = client.OpGet(read.key)
	}
	return read, err
}

// valueOrFile returns the value that a word stands for: for @NAME the content of the file, for
// @@TEXT the text @TEXT, otherwise the word.
func valueOrFile(word string) ([]byte, error) {
	name, isFile := strings.CutPrefix(word, "@")
	if !isFile || strings.HasPrefix(name, "@") {
		return []byte(name), nil
	}
	value, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	return value, nil
}

var errQuote = errors.New("a quotation mark is not closed")

// splitWords returns the words of a line up to a comment.
func splitWords(line string) (words []string, err error) {
	var word strings.Builder
	begun := false
	for len(line) > 0 {
		switch c := line[0]; {
		case c == ' ' || c == '\t':
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
			line = line[1:]
			continue
		case c == '#' && !begun:
			return words, nil
		case c == '\'' || c == '"':
			text, rest, err := quoted(line)
			if err != nil {
				return nil, err
			}
			word.WriteString(text)
			line = rest
		default:
			word.WriteByte(c)
			line = line[1:]
		}
		begun = true
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// quoted reads the text in quotation marks at the beginning of a line.
func quoted(line string) (text, rest string, err error) {
	if line[0] == '\'' {
		text, rest, closed := strings.Cut(line[1:], "'")
		if !closed {
			return "", "", errQuote
		}
		return text, rest, nil
	}
	prefix, err := strconv.QuotedPrefix(line)
	if err != nil {
		return "", "", fmt.Errorf("%w, or has an escape that is none: %.40s", errQuote, line)
	}
	text, err = strconv.Unquote(prefix)
	return text, line[len(prefix):], err
}
