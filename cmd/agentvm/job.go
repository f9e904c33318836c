package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

const jobLong = `Jobs are commands in a VM that agentvm exec -d -n NAME has started. They continue without a client. Their output,
or the beginning and the end of a long one, is kept until agentvm job rm, even when the VM stops and starts.`

const jobExample = `  id=$(agentvm exec -d -n dev "make test")
  agentvm job logs -f dev $id
  agentvm job wait dev $id; echo $?
  agentvm job ls dev`

func (c *cli) jobCommand() *cobra.Command {
	command := &cobra.Command{Use: "job", Short: "Run and manage jobs: commands that continue without a client", Long: jobLong, Example: jobExample}
	command.AddCommand(c.jobListCommand(), c.jobLogsCommand(), c.jobAttachCommand(), c.jobWaitCommand(), c.jobKillCommand(), c.jobRemoveCommand())
	return command
}

// jobInfo is what job ls --json prints of a job.
type jobInfo struct {
	VM       string    `json:"vm"`
	ID       string    `json:"id"`
	State    string    `json:"state"` // running, ended, or how it ended is not known: lost, or damaged
	Args     []string  `json:"args"`
	Label    string    `json:"label,omitempty"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	ExitCode *int      `json:"exitCode,omitempty"`
	Signal   int       `json:"signal,omitempty"`
	TimedOut bool      `json:"timedOut,omitempty"`
	Durable  bool      `json:"durable"` // false: it ends with the client that runs it
	Terminal bool      `json:"terminal,omitempty"`
	Output   uint64    `json:"outputBytes"`
	Error    string    `json:"error,omitempty"`
}

func jobOf(name string, i vm.JobInfo) jobInfo {
	j := jobInfo{
		VM: name, ID: i.ID, State: "running", Args: i.Args, Label: i.Label, Started: i.Started, Ended: i.Ended, TimedOut: i.TimedOut,
		Durable: i.Durable, Terminal: i.Terminal, Output: i.OutputBytes, Error: i.Error,
	}
	switch {
	case i.Exit != nil:
		j.State, j.ExitCode, j.Signal = "ended", &i.Exit.Code, i.Exit.Signal
	case strings.HasPrefix(i.Error, vm.ErrJobDamaged.Error()):
		j.State = "damaged"
	case i.Error != "":
		j.State = "lost"
	}
	return j
}

func (c *cli) jobListCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "ls [flags] [NAME...]", Aliases: []string{"list"}, Short: "List the commands of VMs", ValidArgsFunction: completeNames(0),
		Long: "Lists the commands that run in VMs, and those of exec -d that have ended; without a NAME in all VMs. Of a stopped VM it lists those that are left.",
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []jobInfo{}
			err := each(args, func(name string) error {
				found, err := listJobs(cmd.Context(), name)
				for _, i := range found {
					list = append(list, jobOf(name, i))
				}
				return err
			})
			if len(args) == 0 {
				list, err = allJobs(cmd.Context())
			}
			if asJSON {
				return errors.Join(printJSON(c.stdout, list), err)
			}
			return errors.Join(printJobs(c.stdout, list, len(args) != 1, time.Now()), err)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// allJobs returns the jobs of all VMs.
func allJobs(ctx context.Context) ([]jobInfo, error) {
	list := []jobInfo{}
	store, err := vms()
	if err != nil {
		return list, err
	}
	err = each(store.Names(), func(name string) error {
		found, err := store.Jobs(ctx, name)
		if errors.Is(err, client.ErrNotFound) {
			return nil // removed meanwhile
		}
		for _, i := range found {
			list = append(list, jobOf(name, i))
		}
		return err
	})
	return list, err
}

func printJobs(w io.Writer, list []jobInfo, names bool, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if names {
		fmt.Fprint(table, "VM\t")
	}
	fmt.Fprintln(table, "ID\tSTATE\tEXIT\tTIME\tOUTPUT\tLABEL\tCOMMAND")
	for _, j := range list {
		exit, until := "", now
		if j.ExitCode != nil {
			exit = fmt.Sprint(*j.ExitCode)
		}
		if !j.Ended.IsZero() {
			until = j.Ended
		}
		if names {
			fmt.Fprint(table, j.VM, "\t")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", j.ID, j.State, exit, until.Sub(j.Started).Round(100*time.Millisecond),
			bytesText(int64(j.Output)), printable(j.Label), shortCommand(j.Args))
	}
	return table.Flush()
}

// shortCommand makes a command line short enough for a table.
func shortCommand(args []string) string {
	const maxRunes = 60
	if len(args) == 3 && args[0] == "/bin/sh" && args[1] == "-c" {
		args = args[2:]
	}
	text := []rune(printable(strings.Join(args, " ")))
	if len(text) > maxRunes {
		return string(text[:maxRunes-3]) + "..."
	}
	return string(text)
}

// listJobs asks a VM for its jobs, or reads those that are left of one that does not run.
func listJobs(ctx context.Context, name string) ([]vm.JobInfo, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	list, err := store.Jobs(ctx, name)
	return list, adviseEnded(name, suggest(store, name, err))
}

// withJob calls do with a job, of a VM that runs or of what is left of one that does not.
func withJob(ctx context.Context, name, id string, do func(vm.Job) error) error {
	store, err := vms()
	if err != nil {
		return err
	}
	err = store.WithJob(ctx, name, id, do)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w (agentvm job ls %s lists them)", name, err, name)
	}
	return adviseEnded(name, suggest(store, name, err))
}

func (c *cli) jobLogsCommand() *cobra.Command {
	var follow bool
	var from uint64
	var tail int
	command := &cobra.Command{
		Use: "logs [flags] NAME ID", Short: "Print what a job has written", Args: counted(2, 2), ValidArgsFunction: completeJobs(1),
		Long: `Prints a job's standard output and standard error, each to the same stream here. Of long output the beginning and the end are
kept; a message on standard error says how much is missing.`,
		Example: "  agentvm job logs dev 1a2b3c4d\n  agentvm job logs -f dev 1a2b3c4d",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			err := withJob(ctx, args[0], args[1], func(j vm.Job) (err error) {
				begin := vm.Cursor(from)
				if tail >= 0 {
					if begin, err = lastLines(ctx, j, begin, tail); err != nil {
						return err
					}
				}
				return c.printOutput(ctx, j, begin, follow, s)
			})
			return s.explain(err)
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the job has ended")
	command.Flags().Uint64Var(&from, "from", 0, "leave out the first `BYTES` of the output, both streams together")
	command.Flags().IntVarP(&tail, "tail", "n", -1, "begin with the last `N` lines of what has been written, both streams together (default all)")
	return command
}

// lastLines returns where the last n lines begin of what a job has written from a cursor up to now.
func lastLines(ctx context.Context, j vm.Job, from vm.Cursor, n int) (vm.Cursor, error) {
	info, err := j.Info(ctx)
	if err != nil || uint64(from) >= info.OutputBytes {
		return from, err
	}
	// each calls use with the output up to now, in order. A line is what ends with a newline, and what follows the last one.
	each := func(use func(at vm.Cursor, data []byte) (more bool)) error {
		for next := from; uint64(next) < info.OutputBytes; {
			o, err := j.Output(ctx, next, outputSize)
			if err != nil {
				return err
			}
			at := next + vm.Cursor(o.Lost)
			for _, chunk := range o.Chunks {
				data := chunk.Data[:min(uint64(len(chunk.Data)), info.OutputBytes-min(uint64(at), info.OutputBytes))]
				if !use(at, data) {
					return nil
				}
				at += vm.Cursor(len(chunk.Data))
			}
			if o.End != nil || o.Next == next {
				return nil
			}
			next = o.Next
		}
		return nil
	}
	lines, ended := 0, true
	err = each(func(_ vm.Cursor, data []byte) bool {
		lines += bytes.Count(data, []byte("\n"))
		if len(data) > 0 {
			ended = data[len(data)-1] == '\n'
		}
		return true
	})
	if !ended {
		lines++
	}
	skip, begin := lines-n, from
	if err != nil || skip <= 0 {
		return from, err
	}
	if n == 0 {
		return vm.Cursor(info.OutputBytes), nil
	}
	err = each(func(at vm.Cursor, data []byte) bool {
		for skip > 0 {
			i := bytes.IndexByte(data, '\n')
			if i < 0 {
				return true
			}
			skip--
			data, at = data[i+1:], at+vm.Cursor(i+1)
		}
		begin = at
		return false
	})
	return begin, err
}

// outputSize is how many bytes of output one answer has at most.
const outputSize = 512 << 10

// printOutput prints what has been written up to now, with follow also what follows until the job ends.
func (c *cli) printOutput(ctx context.Context, j vm.Job, next vm.Cursor, follow bool, s *session) error {
	info, err := j.Info(ctx)
	var lost uint64
	defer c.lines.end()
	for err == nil && (follow || uint64(next) < info.OutputBytes) {
		var o vm.JobOutput
		if o, err = j.Output(ctx, next, outputSize); err != nil {
			break
		}
		for _, chunk := range o.Chunks {
			w := output{c.stdout, s, c.lines}
			if chunk.Stream == journal.Stderr {
				w.Writer = c.stderr
			}
			if _, err = w.Write(chunk.Data); err != nil {
				break
			}
		}
		lost += o.Lost
		if o.End != nil {
			err = errors.Join(err, o.Err)
			break
		}
		next = o.Next
	}
	if lost > 0 {
		fmt.Fprintf(c.stderr, "agentvm: %d bytes of the output were not kept\n", lost)
	}
	return err
}

func (c *cli) jobAttachCommand() *cobra.Command {
	var from uint64
	var input bool
	command := &cobra.Command{
		Use: "attach [flags] NAME ID", Short: "Follow a job and type into it", Args: counted(2, 2), ValidArgsFunction: completeJobs(1),
		Long: `Prints a job's output from its beginning, or from --from, until it ends, passes signals and, when it was started with
-i or -t, standard input on, and exits with its code. To leave the job, which then runs on, press Ctrl-C twice within three seconds or, when it has a terminal,
type ~. at the start of a line.`,
		Example: "  agentvm job attach dev $(agentvm exec -dt -n dev sh)",
	}
	command.Flags().Uint64Var(&from, "from", 0, "leave out the first `BYTES` of the output")
	command.Flags().BoolVarP(&input, "interactive", "i", true, "pass standard input on")
	return runs(command, func(ctx context.Context, args []string) error { return c.attachJob(ctx, args[0], args[1], from, input) })
}

func (c *cli) attachJob(ctx context.Context, name, id string, from uint64, input bool) error {
	s := newSession(execInterruptWindow)
	ctx = s.begin(ctx)
	defer s.end()
	var result *vm.Result
	err := withJob(ctx, name, id, func(j vm.Job) error {
		info, err := j.Info(ctx)
		if err != nil {
			return err
		}
		command := vm.Command{Stdout: c.stdout, Stderr: c.stderr}
		if input && !isNull(c.stdin) {
			command.Stdin = c.stdin
		}
		if info.Terminal {
			s.setInterruptWindow(shellInterruptWindow)
		}
		attached := func(ctx context.Context, command vm.Command) (vm.Process, error) {
			if size := command.Terminal; size != nil {
				_ = j.Resize(ctx, *size)
			}
			return client.Follow(ctx, j, command, vm.Cursor(from)), nil
		}
		result, err = c.runIn(ctx, attached, command, info.Terminal && isTerminal(c.stdin) && isTerminal(c.stdout), s)
		return err
	})
	if err != nil {
		return s.explain(err)
	}
	return status(result)
}

func (c *cli) jobWaitCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "wait NAME ID", Short: "Wait for a job and exit with its code", Args: counted(2, 2), ValidArgsFunction: completeJobs(1),
		Long: "Waits until a job has ended and exits with its exit code: 124 when its time was over, 125 when the code is not known.",
	}
	return runs(command, func(ctx context.Context, args []string) error {
		s := newSession(shellInterruptWindow)
		ctx = s.begin(ctx)
		defer s.end()
		var end vm.JobEnd
		err := withJob(ctx, args[0], args[1], func(j vm.Job) (err error) {
			end, err = j.Wait(ctx)
			return err
		})
		if err != nil {
			return s.explain(err)
		}
		return status(&vm.Result{ExitCode: end.Code, TimedOut: end.TimedOut})
	})
}

func (c *cli) jobKillCommand() *cobra.Command {
	var number int
	command := &cobra.Command{
		Use: "kill [flags] NAME ID...", Short: "End jobs", Args: counted(2, 0), ValidArgsFunction: completeJobs(0),
		Long: "Kills jobs and everything they have started, or sends a signal to each one's process group.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if number < 0 || number > 64 {
				return errors.New("--signal: want a number of Linux's, 1 to 64")
			}
			return each(args[1:], func(id string) error {
				return withJob(cmd.Context(), args[0], id, func(j vm.Job) error {
					if number > 0 {
						return j.Signal(cmd.Context(), number)
					}
					return j.Kill(cmd.Context())
				})
			})
		},
	}
	command.Flags().IntVarP(&number, "signal", "s", 0, "send the signal of this `NUMBER` instead")
	return command
}

func (c *cli) jobRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME ID...", Short: "Remove jobs that have ended, and their output", Args: counted(2, 0), ValidArgsFunction: completeJobs(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args[1:], func(id string) error {
				return withJob(cmd.Context(), args[0], id, func(j vm.Job) error { return j.Remove(cmd.Context()) })
			})
		},
	}
}

// completeJobs completes a VM's name and then up to limit IDs of its jobs; 0: any number.
func completeJobs(limit int) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return completeNames(1)(command, args, prefix)
		}
		if limit > 0 && len(args) > limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completeTime)
		defer cancel()
		jobs, _ := listJobs(ctx, args[0])
		var list []string
		for _, j := range jobs {
			list = append(list, cobra.CompletionWithDesc(j.ID, shortCommand(j.Args)))
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeTime is how long a completion may take.
const completeTime = time.Second
