package imagebuild

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/patternmatcher/ignorefile"

	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/vm"
)

// Options are those of Build.
type Options struct {
	Store *images.Store
	// Context is the directory that COPY copies from. Nil: there is none.
	Context *os.Root
	// ContextDir is the path of Context, for RUN --mount=type=bind.
	ContextDir string
	// Dockerfile is the text to build, and File what errors call it.
	Dockerfile []byte
	File       string
	// Name is the image's name in the store. Empty: it is built and cached, and has none.
	Name string
	// Args are the values of ARG instructions, Target the stage to build (default: the last).
	Args   map[string]string
	Target string
	// Platform is what the image is for, and the platform of each FROM that names none (default: the first of platform.Supported that there is
	// of the image from which the target begins).
	Platform platform.Architecture
	// NoCache has every step done again.
	NoCache bool
	// Epoch, unless zero, is the latest time that files and the image itself have (SOURCE_DATE_EPOCH), so that the same input makes the same
	// image.
	Epoch time.Time
	// Secrets are files for RUN --mount=type=secret, by id. They are in no layer and no key.
	Secrets map[string][]byte
	// VM describes the VMs in which RUN runs: memory, network, store. Image, Disk and Mounts are Build's.
	VM vm.Config
	// Resolve finds the image of a FROM for a platform, or for the first that there is, perhaps pulling it.
	Resolve func(ctx context.Context, name string, of platform.Architecture) (*images.Image, error)
	// LookUp returns the addresses of a name, for what ADD fetches.
	LookUp func(ctx context.Context, host string) ([]netip.Addr, error)
	// Output receives what programs print and one line for each step. Nil discards.
	Output io.Writer

	stall time.Duration // fetchStall, in tests
}

// StepError is the error of an instruction.
type StepError struct {
	File        string
	Line        int
	Instruction string
	Err         error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("%s:%d: %s: %v", e.File, e.Line, shorten(e.Instruction), e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// ExitError is the error of a RUN whose program has failed.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("the command has ended with exit code %d", e.Code)
}

// shorten makes one short line of an instruction.
func shorten(text string) string {
	text, _, more := strings.Cut(text, "\n")
	if len(text) > 120 {
		text, more = strings.ToValidUTF8(text[:120], ""), true
	}
	if more {
		text += " ..."
	}
	return text
}

// builder is one Build.
type builder struct {
	Options
	stages    []instructions.Stage
	global    map[string]string // ARGs before the first FROM
	lex       *shell.Lex
	done      map[int]*state       // of stages
	context   *tree                // read when it is needed first
	spools    []*os.File           // plain layers
	spool     string               // directory in the store for files that are removed at the end
	images    map[images.Key]*tree // of COPY --from
	temporary []*images.Image
	now       time.Time
	steps     int // of all stages that are built
	step      int
}

// Build builds an image. On failure the store has no more than the layers of the steps that were done, which the next build uses.
func Build(ctx context.Context, o Options) (image *images.Image, err error) {
	b := &builder{Options: o, done: map[int]*state{}, images: map[images.Key]*tree{}, global: map[string]string{}, now: o.Epoch}
	if b.now.IsZero() {
		b.now = time.Now().UTC().Truncate(time.Second)
	}
	if b.Output == nil {
		b.Output = io.Discard
	}
	target, err := b.prepare(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range b.needed(target) {
		b.steps += len(b.stages[i].Commands)
	}
	spool, err := atomicfile.MkdirTemp(b.Store.Dir(), "build")
	if err != nil {
		return nil, err
	}
	b.spool = spool.Path()
	defer func() {
		for _, image := range b.temporary {
			_ = b.Store.Untag(image)
		}
		for _, f := range b.spools {
			_ = f.Close()
		}
		err = errors.Join(err, spool.Remove())
	}()
	release, err := b.Store.Hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := b.stage(ctx, target)
	if err != nil {
		return nil, err
	}
	if len(s.layers) == 0 {
		return nil, fmt.Errorf("%s: the image has no files: copy something, or begin from an image", o.File)
	}
	if b.Name == "" {
		return s.compose(ctx, "localhost/agentvm-build:"+s.key[:32])
	}
	return s.compose(ctx, b.Name)
}

// prepare reads the Dockerfile, chooses the platform unless Options has one, and returns which stage is wanted.
func (b *builder) prepare(ctx context.Context) (target int, err error) {
	given := b.Platform != ""
	b.Platform = cmp.Or(b.Platform, platform.Default)
	if target, err = b.parse(); err != nil || given {
		return target, err
	}
	of, err := b.platformOf(ctx, target)
	if err != nil || of == b.Platform {
		return target, err
	}
	b.Platform, b.global = of, map[string]string{} // whose values may have been those of the other platform
	return b.parse()
}

// platformOf returns the platform of the image from which a stage begins, by way of other stages or not. FROM that has a platform, or no image,
// leaves the build's as it is; what is wrong in one the stage itself says.
func (b *builder) platformOf(ctx context.Context, number int) (platform.Architecture, error) {
	for {
		stage := b.stages[number]
		base, err := b.expand(stage.BaseName, b.global)
		if err != nil || stage.Platform != "" || base == "" {
			return b.Platform, nil
		}
		if n, ok := b.stageNumber(base, number); ok {
			number = n
			continue
		}
		if base == "scratch" {
			return b.Platform, nil
		}
		image, err := b.Resolve(ctx, base, "")
		if err != nil {
			return "", b.at(stage.Location, stage.SourceCode, err)
		}
		return image.Architecture, nil
	}
}

// parse reads the Dockerfile and returns which stage is wanted.
func (b *builder) parse() (target int, err error) {
	if syntax, _, _, ok := parser.DetectSyntax(b.Dockerfile); ok {
		if err := checkSyntax(syntax); err != nil {
			return 0, fmt.Errorf("%s: %w", b.File, err)
		}
	}
	result, err := parser.Parse(bytes.NewReader(b.Dockerfile))
	if err != nil {
		return 0, b.locate(err)
	}
	stages, args, err := instructions.Parse(result.AST, nil)
	if err != nil {
		return 0, b.locate(err)
	}
	b.stages, b.lex = stages, shell.NewLex(result.EscapeToken)
	if len(stages) == 0 {
		return 0, fmt.Errorf("%s: there is no FROM", b.File)
	}
	maps.Copy(b.global, platformArgs(b.Platform))
	for _, arg := range args {
		for _, a := range arg.Args {
			if err := b.declare(a, b.global, b.global, nil); err != nil {
				return 0, fmt.Errorf("%s: %s: %w", b.File, arg.String(), err)
			}
		}
	}
	if b.Target == "" {
		return len(stages) - 1, nil
	}
	if i, ok := instructions.HasStage(stages, b.Target); ok {
		return i, nil
	}
	if n, err := strconv.Atoi(b.Target); err == nil && n >= 0 && n < len(stages) {
		return n, nil
	}
	return 0, fmt.Errorf("%s: no stage is called %q", b.File, b.Target)
}

// locate adds the file and line to a parser's error.
func (b *builder) locate(err error) error {
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		return fmt.Errorf("%s:%d: %w", b.File, at.Locations[0][0].Start.Line, err)
	}
	return fmt.Errorf("%s: %w", b.File, err)
}

// platformArgs are the ARGs that need no declaration in FROM (Dockerfile reference, "Automatic platform ARGs"). What builds is a VM of the
// platform that the image is for: an image of another might not exist for what compiles.
func platformArgs(of platform.Architecture) map[string]string {
	return map[string]string{
		"TARGETPLATFORM": of.Platform(), "TARGETOS": "linux", "TARGETARCH": string(of), "TARGETVARIANT": "",
		"BUILDPLATFORM": of.Platform(), "BUILDOS": "linux", "BUILDARCH": string(of), "BUILDVARIANT": "",
	}
}

// proxyArgs are the ARGs that RUN has without a declaration, when they are given (Dockerfile reference, "Predefined ARGs").
var proxyArgs = []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"}

// declare gives an ARG its value, from the command line, the instruction, or the ARGs before the first FROM.
func (b *builder) declare(a instructions.KeyValuePairOptional, into, env map[string]string, outer map[string]string) error {
	if value, given := b.Args[a.Key]; given {
		into[a.Key] = value
		return nil
	}
	if a.Value != nil {
		value, err := b.expand(*a.Value, env)
		into[a.Key] = value
		return err
	}
	if value, ok := outer[a.Key]; ok {
		into[a.Key] = value
	}
	return nil
}

// variables is what a word's variables stand for.
type variables map[string]string

func (v variables) Get(key string) (string, bool) { value, ok := v[key]; return value, ok }
func (v variables) Keys() []string                { return slices.Sorted(maps.Keys(v)) }

func (b *builder) expand(word string, env map[string]string) (string, error) {
	value, _, err := b.lex.ProcessWord(word, variables(env))
	return value, err
}

// stageNumber finds the stage that a name or number means, before the stage at limit.
func (b *builder) stageNumber(name string, limit int) (int, bool) {
	if i, ok := instructions.HasStage(b.stages[:limit], name); ok {
		return i, true
	}
	n, err := strconv.Atoi(name)
	return n, err == nil && n >= 0 && n < limit
}

// needed returns the stages that a stage needs, and itself.
func (b *builder) needed(target int) []int {
	found := map[int]bool{}
	var visit func(int)
	visit = func(i int) {
		if found[i] {
			return
		}
		found[i] = true
		if base, err := b.expand(b.stages[i].BaseName, b.global); err == nil {
			if n, ok := b.stageNumber(base, i); ok {
				visit(n)
			}
		}
		for _, c := range b.stages[i].Commands {
			if from, ok := c.(*instructions.CopyCommand); ok && from.From != "" {
				if n, ok := b.stageNumber(from.From, i); ok {
					visit(n)
				}
			}
			if run, ok := c.(*instructions.RunCommand); ok {
				for _, m := range instructions.GetMounts(run) {
					if n, ok := b.stageNumber(m.From, i); ok && m.From != "" {
						visit(n)
					}
				}
			}
		}
	}
	visit(target)
	return slices.Sorted(maps.Keys(found))
}

// state is what the steps of a stage have made so far.
type state struct {
	b      *builder
	number int // of the stage
	name   string
	of     platform.Architecture
	config *v1.ConfigFile
	layers []images.Layer
	key    string            // hex
	args   map[string]string // that were declared
	shell  []string
	image  *images.Image // composed of the layers so far, or nil
	tree   *tree         // what the layers make, or nil
}

// stage builds a stage, once.
func (b *builder) stage(ctx context.Context, number int) (*state, error) {
	if s := b.done[number]; s != nil {
		return s, nil
	}
	stage := b.stages[number]
	s, err := b.begin(ctx, number, stage)
	if err != nil {
		return nil, b.at(stage.Location, stage.SourceCode, err)
	}
	var triggers []instructions.Command
	if list := s.config.Config.OnBuild; len(list) > 0 {
		if triggers, err = b.triggers(list); err != nil {
			return nil, b.at(stage.Location, stage.SourceCode, err)
		}
		s.config.Config.OnBuild = nil
		b.steps += len(triggers)
	}
	for _, command := range slices.Concat(triggers, stage.Commands) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b.step++
		if err := s.do(ctx, command); err != nil {
			return nil, b.at(command.Location(), fmt.Sprint(command), err)
		}
	}
	b.done[number] = s
	return s, nil
}

func (b *builder) at(location []parser.Range, text string, err error) error {
	if errors.As(err, new(*StepError)) {
		return err
	}
	line := 0
	if len(location) > 0 {
		line = location[0].Start.Line
	}
	return &StepError{File: b.File, Line: line, Instruction: text, Err: err}
}

// triggers parses the ONBUILD instructions of a base.
func (b *builder) triggers(list []string) (commands []instructions.Command, err error) {
	for _, text := range list {
		result, err := parser.Parse(strings.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("ONBUILD %s: %w", shorten(text), err)
		}
		for _, child := range result.AST.Children {
			command, err := instructions.ParseCommand(child)
			if err != nil {
				return nil, fmt.Errorf("ONBUILD %s: %w", shorten(text), err)
			}
			commands = append(commands, command)
		}
	}
	return commands, nil
}

// begin makes a stage's first state, from its FROM.
func (b *builder) begin(ctx context.Context, number int, stage instructions.Stage) (*state, error) {
	base, err := b.expand(stage.BaseName, b.global)
	if err != nil {
		return nil, err
	}
	given, err := b.expand(stage.Platform, b.global)
	if err != nil {
		return nil, err
	}
	of := b.Platform
	if given != "" {
		if of, err = platform.Parse(given); err != nil {
			return nil, err
		}
	}
	s := &state{b: b, number: number, name: cmp.Or(stage.Name, strconv.Itoa(number)), of: of, args: map[string]string{}, shell: []string{"/bin/sh", "-c"}}
	if n, ok := b.stageNumber(base, number); ok {
		from, err := b.stage(ctx, n)
		if err != nil {
			return nil, err
		}
		if given != "" && of != from.of {
			return nil, fmt.Errorf("--platform=%s: the stage %s is for %s: give its FROM the platform", given, from.name, from.of.Platform())
		}
		s.of = from.of
		s.config, s.layers, s.key, s.image, s.tree = from.config.DeepCopy(), slices.Clone(from.layers), from.key, from.image, from.tree
		s.shell = from.shell
		return s, nil
	}
	if base == "" {
		return nil, errors.New("FROM has no image (a build argument that is not set?)")
	}
	if base == "scratch" {
		s.config = &v1.ConfigFile{Architecture: string(of), Variant: of.Variant(), OS: "linux"}
		s.config.Config.Env = []string{defaultPath}
		s.key = digestOf("scratch", string(of))
		return s, nil
	}
	if s.image, err = b.Resolve(ctx, base, of); err != nil {
		return nil, err
	}
	if s.config, s.layers, err = b.Store.Configuration(ctx, s.image); err != nil {
		return nil, err
	}
	s.config = s.config.DeepCopy()
	if !slices.ContainsFunc(s.config.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }) {
		s.config.Config.Env = append(s.config.Config.Env, defaultPath)
	}
	if len(s.config.Config.Shell) > 0 {
		s.shell = s.config.Config.Shell
	}
	text, err := json.Marshal(s.config)
	s.key = digestOf("from", string(text))
	return s, err
}

// defaultPath is the PATH of images that have none, so that ENV can add to it.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// digestOf returns a digest (hex) of some texts.
func digestOf(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(hash, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// env is what variables stand for in the stage's instructions: ENV wins over ARG.
func (s *state) env() map[string]string {
	env := maps.Clone(s.args)
	for _, kv := range s.config.Config.Env {
		key, value, _ := strings.Cut(kv, "=")
		env[key] = value
	}
	return env
}

// clamp is the time that a file with time t gets.
func (b *builder) clamp(t time.Time) time.Time {
	if t.IsZero() || !b.Epoch.IsZero() && t.After(b.Epoch) {
		return b.now
	}
	return t.Truncate(time.Second)
}

// record adds a step to the history and to the key.
func (s *state) record(text string, layer *images.Layer, more ...string) {
	s.key = digestOf(append([]string{s.key, text}, more...)...)
	s.config.History = append(s.config.History, v1.History{
		Created: v1.Time{Time: s.b.now}, CreatedBy: text, EmptyLayer: layer == nil, Comment: "agentvm build",
	})
	if layer != nil {
		s.layers = append(s.layers, *layer)
		s.image, s.tree = nil, nil
	} else {
		s.image = nil
	}
}

// cached does a step that makes a layer, unless the store has that already. make writes the layer.
func (s *state) cached(ctx context.Context, text string, depends []string, make func(ctx context.Context, w io.Writer) error) error {
	key := digestOf(append([]string{s.key, text, s.b.Epoch.String()}, depends...)...)
	layer, ok := s.b.Store.CachedLayer(key)
	if !ok || s.b.NoCache {
		s.say(text, "")
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(make(ctx, w)) }()
		var err error
		layer, err = s.b.Store.AddLayer(ctx, r)
		_ = r.CloseWithError(errors.New("the layer is not wanted any more"))
		if err == nil {
			err = s.b.Store.CacheLayer(key, layer)
		}
		if err != nil {
			return err
		}
	} else {
		s.say(text, "CACHED ")
	}
	s.record(text, &layer, depends...)
	return nil
}

func (s *state) say(text, note string) {
	fmt.Fprintf(s.b.Output, "[%s %d/%d] %s%s\n", s.name, s.b.step, s.b.steps, note, shorten(text))
}

// compose makes an image of what there is.
func (s *state) compose(ctx context.Context, name string) (*images.Image, error) {
	config := s.config.DeepCopy()
	config.Created = v1.Time{Time: s.b.now}
	config.Architecture, config.Variant, config.OS, config.Container = string(s.of), s.of.Variant(), "linux", ""
	return s.b.Store.Compose(ctx, name, config, s.layers)
}

// files returns the tree that the layers so far make.
func (s *state) files(ctx context.Context) (*tree, error) {
	if s.tree != nil {
		return s.tree, nil
	}
	var err error
	s.tree, err = s.b.treeOf(ctx, s.layers)
	return s.tree, err
}

// treeOf returns the tree that layers make together.
func (b *builder) treeOf(ctx context.Context, layers []images.Layer) (*tree, error) {
	t := newTree()
	for _, l := range layers {
		if err := b.addLayer(ctx, t, l); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// addLayer puts a layer of the store on top of a tree.
func (b *builder) addLayer(ctx context.Context, t *tree, l images.Layer) error {
	r, err := b.Store.ReadLayer(l)
	if err != nil {
		return err
	}
	defer r.Close()
	spool, err := os.CreateTemp(b.spool, "layer-")
	if err != nil {
		return err
	}
	b.spools = append(b.spools, spool)
	return t.addArchive(ctx, r, spool)
}

// contextTree returns what the context has.
func (b *builder) contextTree(ctx context.Context) (*tree, error) {
	if b.context != nil {
		return b.context, nil
	}
	if b.Context == nil {
		return nil, errors.New("there is no context to copy from: name a directory")
	}
	var patterns []string
	for _, name := range []string{path.Base(b.File) + ".dockerignore", ".dockerignore"} {
		f, err := b.Context.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		patterns, err = ignorefile.ReadAll(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		break
	}
	t, err := readContext(ctx, b.Context, patterns)
	if err != nil {
		return nil, fmt.Errorf("read the context: %w", err)
	}
	b.context = t
	return t, nil
}
