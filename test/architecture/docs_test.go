package architecture

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// TestDocumentationNamesWhatExists: a test or file that the documentation names exists.
func TestDocumentationNamesWhatExists(t *testing.T) {
	root := filepath.Join("..", "..")
	declared, files := make(map[string]bool), make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(relative)] = true
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range function.FindAllSubmatch(source, -1) {
			declared[string(match[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	test, file := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w+)`"),
		regexp.MustCompile("`([a-z]+(?:/[a-z0-9_]+)+\\.go)`")
	for page, text := range pages(t, root) {
		for _, match := range test.FindAllStringSubmatch(text, -1) {
			if name := match[1]; !declared[name] {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
		for _, match := range file.FindAllStringSubmatch(text, -1) {
			if name := match[1]; !files[name] {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
	// `go test -run` succeeds if nothing matches.
	selected := regexp.MustCompile(`(?:-run '?|"Test)([A-Za-z]\w*(?:\|\w+)*)`)
	commands := pages(t, root)
	for _, file := range []string{"Makefile", ".ci/run", "test/brokers/check.go"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		commands[file] = string(text)
	}
	for page, text := range commands {
		for _, match := range selected.FindAllStringSubmatch(text, -1) {
			for pattern := range strings.SplitSeq(match[1], "|") {
				if !slices.ContainsFunc(slices.Collect(maps.Keys(declared)),
					func(name string) bool { return strings.Contains(name, pattern) }) {
					t.Errorf("%s runs tests by the pattern %s, which no test matches", page,
						pattern)
				}
			}
		}
	}
}

// pages returns the texts of all pages for people, by their paths.
func pages(t *testing.T, root string) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, pattern := range []string{
		"*.md", "docs/*.md", "docs/*/*.md", "helm/*/*.md",
		"*/DESIGN.md",
		"test/FOUND.md",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		for _, page := range found {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			texts[page] = string(text)
		}
	}
	return texts
}

// `make fuzz` runs exactly the fuzz targets that exist.
func TestMakeFuzzRunsEachTarget(t *testing.T) {
	root := filepath.Join("..", "..")
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Fields(strings.ReplaceAll(
		regexp.MustCompile(`(?s)\nFUZZ := (.*?[^\\])\n`).FindStringSubmatch(string(makefile))[1],
		"\\\n", " "))
	var found []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		for _, target := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`).FindAllStringSubmatch(
			string(source), -1) {
			found = append(found, folder+":"+target[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(listed)
	slices.Sort(found)
	if !slices.Equal(listed, found) {
		t.Errorf("make fuzz runs\n%v\nand there are\n%v", listed, found)
	}
}

// Each link from one page to another leads to a file or heading that exists. Each `make` command
// names targets of the Makefile.
func TestDocumentationLinksAndTargets(t *testing.T) {
	root := filepath.Join("..", "..")
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := make(map[string]bool)
	for _, match := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(
		string(makefile), -1) {
		targets[match[1]] = true
	}
	texts := pages(t, root)
	link, heading := regexp.MustCompile(`\]\(([^):#]*)(?:#([^)]*))?\)`),
		regexp.MustCompile(`(?m)^#+ (.*)$`)
	command := regexp.MustCompile("(?m)(?:^    |`)make ((?:[a-z0-9][a-z0-9-]* ?)+)")
	for page, text := range texts {
		t.Run(page, func(t *testing.T) {
			for _, match := range command.FindAllStringSubmatch(text, -1) {
				for _, target := range strings.Fields(match[1]) {
					if !targets[target] {
						t.Errorf("make %s is no target", target)
					}
				}
			}
			for _, match := range link.FindAllStringSubmatch(text, -1) {
				target := page
				if match[1] != "" {
					target = filepath.Join(filepath.Dir(page), match[1])
				}
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%v", err)
					continue
				}
				found := match[2] == ""
				for _, title := range heading.FindAllStringSubmatch(texts[target], -1) {
					found = found || anchor(title[1]) == match[2]
				}
				if !found {
					t.Errorf("%s has no heading %s", target, match[2])
				}
			}
		})
	}
}

// anchor returns the name of a heading in links, as GitHub makes it.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// TestPagesHaveShortLines: lines are short, so that a diff of a page shows which sentence changed.
// Tables and code are exempt.
func TestPagesHaveShortLines(t *testing.T) {
	const most = 120
	for page, text := range pages(t, filepath.Join("..", "..")) {
		code := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			words := strings.Fields(line)
			if code || len(words) < 2 || strings.HasPrefix(words[0], "|") ||
				strings.HasPrefix(line, "    ") {
				continue
			}
			if length := utf8.RuneCountInString(line); length > most {
				t.Errorf("%s:%d has %d characters", page, i+1, length)
			}
		}
	}
}

// What the pages show to be pasted is whole: YAML parses, and no line has the commands of several.
func TestPagesCanBePasted(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	for page, text := range pages(t, filepath.Join("..", "..")) {
		for _, match := range block.FindAllStringSubmatch(text, -1) {
			var document any
			if err := yaml.Unmarshal([]byte(match[1]), &document); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "    kubectl ") && strings.Count(line, "kubectl ") > 1 &&
				!strings.ContainsAny(line, "&;|$") {
				t.Errorf("%s:%d has several commands", page, i+1)
			}
		}
	}
}
