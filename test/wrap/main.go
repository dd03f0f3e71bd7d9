// Command wrap breaks lines of Go files that are wider than 100 columns, a tab counting as four:
//
//	go run ./test/wrap              # names the lines that are too wide, and fails if there are any
//	go run ./test/wrap -w FILE...   # breaks them; gofumpt then sets the indentation right
//
// Paragraphs of comments are filled again. A comment behind code goes above it, or into the block
// that the code begins. Code is broken behind a comma or a binary operator, as far out in the
// brackets as possible. What cannot be broken (a long text, a line of a raw string) may be wider.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	write := flag.Bool("w", false, "break the lines, and write the files")
	flag.Parse()
	files := flag.Args()
	if len(files) == 0 {
		files = goFiles(".")
	}
	wide := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			fatal(err)
		}
		wrapped, err := Wrap(string(source))
		if err != nil {
			fatal(fmt.Errorf("%s: %w", file, err))
		}
		if wrapped == string(source) {
			continue
		}
		if *write {
			if err := os.WriteFile(file, []byte(wrapped), 0o644); err != nil {
				fatal(err)
			}
			continue
		}
		for _, line := range changed(string(source), wrapped) {
			wide++
			fmt.Printf("%s:%d: wider than %d columns\n", file, line, limit)
		}
	}
	if wide > 0 {
		fatal(fmt.Errorf("%d lines are too wide: go run ./test/wrap -w FILE, then gofumpt", wide))
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// goFiles returns the Go files below a folder.
func goFiles(root string) (files []string) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != root ||
			entry.Name() == "report"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		fatal(err)
	}
	return files
}

// changed returns the numbers of the lines of before that are too wide and are not in after.
func changed(before, after string) (numbers []int) {
	kept := make(map[string]bool)
	for _, line := range strings.Split(after, "\n") {
		kept[line] = true
	}
	for i, line := range strings.Split(before, "\n") {
		if width(line) > limit && !kept[line] {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}
