package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/client"
)

// keyResult is what the commands on one key print with -o json. A value that is no UTF-8 is in
// base64.
type keyResult struct {
	Key         string  `json:"key,omitempty"`
	KeyBase64   []byte  `json:"keyBase64,omitempty"` // instead of Key if that is not valid UTF-8
	Result      string  `json:"result"`              // ok, not_found or not_applied
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"valueBase64,omitempty"`
	Version     string  `json:"version,omitempty"`
}

// resultOf returns a keyResult that has only the key.
func resultOf(key string) keyResult {
	if !utf8.ValidString(key) {
		return keyResult{KeyBase64: []byte(key)}
	}
	return keyResult{Key: key}
}

func (r *keyResult) setValue(value []byte) {
	if utf8.Valid(value) {
		text := string(value)
		r.Value = &text
		return
	}
	r.ValueBase64 = value
}

// finish prints the result of a command on a key, and returns the error that determines the exit
// code. text is printed after a success without -o json. With -o json, "not found" and "not
// applied" are printed as results.
func (c *connection) finish(out io.Writer, r keyResult, version client.Version, text string,
	err error,
) error {
	var notApplied *client.NotAppliedError
	switch {
	case errors.As(err, &notApplied):
		r.Result, version = "not_applied", notApplied.Version
	case errors.Is(err, client.ErrNotFound):
		r.Result = "not_found"
	case err != nil:
		return err
	default:
		r.Result = "ok"
	}
	if !version.IsZero() {
		r.Version = version.String()
	}
	if c.output == "json" {
		return printResult(out, r, err)
	}
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	return err
}

// printResult prints a result as JSON. If err is not nil, the command was not applied: the exit
// code is exitNotApplied.
func printResult(out io.Writer, result any, err error) error {
	if printErr := printJSON(out, result); printErr != nil {
		return printErr
	}
	if err != nil {
		return &codeError{code: exitNotApplied}
	}
	return nil
}

func newGet() *cobra.Command {
	var c connection
	command := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key, and nothing else",
		Long: "Prints the value exactly as it is stored. On a terminal a newline follows.\n" +
			exitHelp,
		Example: "  holdfast get lines/7/recipe\n  holdfast get lines/7/recipe -o json",
		Args:    positional(cobra.ExactArgs(1)),
	}
	c.addFlags(command)
	command.RunE = func(command *cobra.Command, arguments []string) error {
		return c.do(command, func(ctx context.Context, store *client.Client) error {
			value, version, err := store.Get(ctx, arguments[0])
			result := resultOf(arguments[0])
			if err == nil {
				result.setValue(value)
			}
			text := string(value)
			if isTerminal(command.OutOrStdout()) && !strings.HasSuffix(text, "\n") {
				text += "\n"
			}
			return c.finish(stdout(command), result, version, text, err)
		})
	}
	return command
}

// fence is the flag --fence, which has a fencing token.
type fence struct{ text string }

func (f *fence) addFlags(command *cobra.Command) {
	command.Flags().StringVar(&f.text, "fence", "",
		"fencing `token`, a version such as 1696374425000:1:StateStore; `holdfast lock` exports one as HOLDFAST_FENCING_TOKEN")
}

func (f *fence) options(command *cobra.Command) ([]client.Option, error) {
	if !command.Flags().Changed("fence") {
		return nil, nil
	}
	token, err := client.ParseVersion(f.text)
	if err != nil {
		return nil, usagef("--fence is %q: %w", f.text, err)
	}
	return []client.Option{client.Fence(token)}, nil
}

// ifVersion is the flag --if-version, a condition on the key's version.
type ifVersion struct{ text string }

func (v *ifVersion) add(flags *pflag.FlagSet) {
	flags.StringVar(&v.text, "if-version", "", "only if the key exists with exactly this `version`")
}

// options returns the option, if the flag is given. An empty version, as from an unset shell
// variable, is an error: ignoring it would make the command unconditional.
func (v *ifVersion) options(flags *pflag.FlagSet) ([]client.Option, error) {
	if !flags.Changed("if-version") {
		return nil, nil
	}
	version, err := client.ParseVersion(v.text)
	if err != nil {
		return nil, usagef("--if-version is %q: %w", v.text, err)
	}
	return []client.Option{client.IfVersion(version)}, nil
}

// setFlags are the flags of set that change the command: its condition and its expiry.
type setFlags struct {
	version ifVersion
	nx      bool
	nex     string
	px      time.Duration
}

func (s *setFlags) add(flags *pflag.FlagSet) {
	s.version.add(flags)
	flags.BoolVar(&s.nx, "nx", false, "only if the key does not exist")
	flags.StringVar(&s.nex, "nex", "",
		"only if the key does not exist or has this `value`; without a value: the new one")
	flags.Lookup("nex").NoOptDefVal = sameValue
	flags.DurationVar(&s.px, "px", 0, "the key goes away after this `time`, such as 1500ms or 10s")
}

func (s *setFlags) options(flags *pflag.FlagSet) ([]client.Option, error) {
	options, err := s.version.options(flags)
	if err != nil {
		return nil, err
	}
	switch {
	case s.nx && flags.Changed("nex"):
		return nil, usagef("--nx and --nex exclude each other")
	case len(options) > 0 && (s.nx || flags.Changed("nex")):
		return nil, usagef("--if-version excludes --nx and --nex")
	case s.nx:
		options = append(options, client.IfAbsent())
	case flags.Changed("nex") && s.nex == sameValue:
		options = append(options, client.IfAbsentOrSame())
	case flags.Changed("nex"):
		options = append(options, client.IfAbsentOrEqual([]byte(s.nex)))
	}
	if flags.Changed("px") {
		if s.px < time.Millisecond {
			return nil, usagef("--px is %v: must be at least 1ms", s.px)
		}
		options = append(options, client.Expire(s.px))
	}
	return options, nil
}

func newSet() *cobra.Command {
	var c connection
	var f fence
	var change setFlags
	var file string
	command := &cobra.Command{
		Use:   "set KEY [VALUE]",
		Short: "Store a value",
		Long: "Stores a value and prints its version. The value comes from the argument, from --file, or, with neither, from the standard\n" +
			"input.\n" + exitHelp,
		Example: "  holdfast set lines/7/recipe 'steel, 2mm'\n" +
			"  echo 'G1 X10' | holdfast set lines/7/program --file -\n" +
			"  holdfast set lines/7/owner plc-a --nx --px 10s        # only if nobody is\n" +
			"  holdfast set lines/7/owner plc-a --nex --px 10s       # renew, if it is still this one\n" +
			"  holdfast set lines/7/owner plc-b --nex=plc-a          # only if it is plc-a's, or nobody's\n" +
			"  version=$(holdfast set lines/7/recipe 'steel, 2mm')\n" +
			"  holdfast set lines/7/recipe 'steel, 3mm' --if-version \"$version\"\n" +
			"  holdfast lock lines/7/master -- sh -c 'holdfast set lines/7/state running --fence \"$HOLDFAST_FENCING_TOKEN\"'",
		Args: positional(cobra.RangeArgs(1, 2)),
	}
	c.addFlags(command)
	f.addFlags(command)
	change.add(command.Flags())
	command.Flags().StringVar(&file, "file", "", "`file` with the value; - is the standard input")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		options, err := f.options(command)
		if err != nil {
			return err
		}
		more, err := change.options(command.Flags())
		if err != nil {
			return err
		}
		options = append(options, more...)
		value, err := readValue(command.Context(), command.InOrStdin(), arguments[1:], file)
		if err != nil {
			return err
		}
		return c.do(command, func(ctx context.Context, store *client.Client) error {
			version, err := store.Set(ctx, arguments[0], value, options...)
			return c.finish(command.OutOrStdout(), resultOf(arguments[0]), version,
				version.String()+"\n", err)
		})
	}
	return command
}

// sameValue is the value of --nex when none is given. It is the character word joiner, which is
// invisible in the help text. --nex cannot compare with it.
const sameValue = "\u2060"

func readValue(ctx context.Context, stdin io.Reader, arguments []string, file string) ([]byte,
	error,
) {
	switch {
	case len(arguments) > 0 && file != "":
		return nil, usagef("the value is given twice, as an argument and by --file")
	case len(arguments) > 0:
		return []byte(arguments[0]), nil
	case file == "" || file == "-":
		return readAll(ctx, stdin)
	default:
		// it may be a pipe
		value, err := interruptible(ctx, func() ([]byte, error) { return os.ReadFile(file) })
		if err != nil {
			return nil, &usageError{fmt.Errorf("read the value: %w", err)}
		}
		return value, nil
	}
}

// readAll reads to the end, or until the program is told to stop.
func readAll(ctx context.Context, stdin io.Reader) ([]byte, error) {
	value, err := interruptible(ctx, func() ([]byte, error) { return io.ReadAll(stdin) })
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	return value, nil
}

func newDel() *cobra.Command {
	var v ifVersion
	var condition []client.Option
	command := newRemove("del KEY", "Delete a key", "  holdfast del lines/7/recipe\n"+
		"  version=$(holdfast set lines/7/draft 'steel, 3mm')\n"+
		"  holdfast del lines/7/draft --if-version \"$version\"", cobra.ExactArgs(1),
		func(ctx context.Context, store *client.Client, arguments []string,
			options []client.Option,
		) (client.Version, error) {
			return store.Del(ctx, arguments[0], append(options, condition...)...)
		})
	v.add(command.Flags())
	command.PreRunE = func(command *cobra.Command, _ []string) (err error) { // before it connects
		condition, err = v.options(command.Flags())
		return err
	}
	return command
}

func newVDel() *cobra.Command {
	return newRemove("vdel KEY VALUE", "Delete a key if it has a value",
		"  holdfast vdel lines/7/owner plc-b", cobra.ExactArgs(2),
		func(ctx context.Context, store *client.Client, arguments []string,
			options []client.Option,
		) (client.Version, error) {
			return store.VDel(ctx, arguments[0], []byte(arguments[1]), options...)
		})
}

func newRemove(use, short, example string, args cobra.PositionalArgs,
	remove func(context.Context, *client.Client, []string, []client.Option) (client.Version, error),
) *cobra.Command {
	var c connection
	var f fence
	command := &cobra.Command{
		Use: use, Short: short, Example: example, Args: positional(args),
		Long: short + ", and print the version of the deleted value.\n" + exitHelp,
	}
	c.addFlags(command)
	f.addFlags(command)
	command.RunE = func(command *cobra.Command, arguments []string) error {
		options, err := f.options(command)
		if err != nil {
			return err
		}
		return c.do(command, func(ctx context.Context, store *client.Client) error {
			version, err := remove(ctx, store, arguments, options)
			return c.finish(command.OutOrStdout(), resultOf(arguments[0]), version,
				version.String()+"\n", err)
		})
	}
	return command
}
