package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/settings"
	"agentvm/vm"
)

const imageLong = `Images are root file systems that VMs boot. They are kept in AGENTVM_STORE, by default the directory
agentvm among the user's caches.

  alpine           the Alpine release that this version is pinned to
  alpine:VERSION   another one, or the newest with alpine:latest, from AGENTVM_ALPINE_MIRROR (http, https or file) or Alpine's server
  busybox          a small root built into agentvm, which needs no network
  NAME[:TAG]       an image of a registry, by default Docker Hub, such as python:3.13-alpine or ghcr.io/owner/image@sha256:...
  docker://NAME    the same, also for names to which agentvm gives another meaning, such as docker://alpine:3.22
  oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME:TAG]
                   an image of a directory in the OCI layout, of an archive of one, or of docker save
  -                the image of such an archive on standard input

All of these work wherever an image is named; AGENTVM_IMAGE is the default. Images may be for linux/riscv64 or
linux/arm64; of an image that has both, the first is taken, unless --platform says otherwise. The credentials are those of docker login.
AGENTVM_REGISTRY_MIRRORS (HOST=URL,...) replaces registries by mirrors; those of AGENTVM_INSECURE_REGISTRIES (HOST,...) may speak
plain HTTP.`

func (c *cli) imageCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "image",
		Short:   "List, download, import, push, save and remove images",
		Long:    imageLong,
		Example: "  agentvm image pull alpine:latest\n  agentvm image import rootfs.tar.gz mine\n  agentvm exec --image mine \"cat /etc/os-release\"",
	}
	command.AddCommand(c.imageListCommand(), c.imagePullCommand(), c.imageImportCommand(), c.imageInspectCommand(), c.imageHistoryCommand(), c.imageTagCommand(),
		c.imagePushCommand(), c.imageSaveCommand(), c.imageExportCommand(), c.imageRemoveCommand(), c.imagePruneCommand())
	return command
}

func (c *cli) imageListCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the images in the store", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := c.store(nil)
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			usage, _, err := store.Usage()
			if err != nil {
				return err
			}
			listed := []listedImage{} // [] when there is none
			for _, image := range list {
				end, _ := images.SupportEnd(image.Name)
				listed = append(listed, listedImage{image, usage[image.Key()], end})
			}
			if asJSON {
				return printJSON(c.stdout, listed)
			}
			if err := printImages(c.stdout, listed); err != nil {
				return err
			}
			for _, image := range list {
				if text := unsupported(image.Name, time.Now()); text != "" {
					fmt.Fprintf(c.stderr, "agentvm: %s\n", text)
				}
			}
			return nil
		},
	}
	command.Long = command.Short + `.

SIZE is that of the unpacked files. OWN is the compressed size that the image alone takes in the store and that its removal would free; SHARED is
the size of what it has in common with others.`
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// listedImage is what image ls --json prints of an image.
type listedImage struct {
	images.Image
	images.Usage
	SupportEnd time.Time `json:"supportEnd,omitzero"` // as far as this program knows
}

// unsupported says that a release of Alpine gets no security fixes any more; empty for images of which that is not known.
func unsupported(name string, now time.Time) string {
	end, known := images.SupportEnd(name)
	if !known || now.Before(end) {
		return ""
	}
	return fmt.Sprintf("%s is out of support since %s: new VMs of image %s have a newer release", name, end.Format(time.DateOnly), images.AlpineName)
}

func printImages(w io.Writer, list []listedImage) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tPLATFORM\tSIZE\tOWN\tSHARED\tCREATED\tFROM")
	for _, image := range list {
		fmt.Fprintf(table, "%s\t%s\t%.1f MB\t%s\t%s\t%s\t%s\n", image.Name, image.Architecture.Platform(), float64(image.Size)/1e6, bytesText(image.Own), bytesText(image.Shared),
			image.Created.Format("2006-01-02 15:04"), image.Ref)
	}
	return table.Flush()
}

func (c *cli) imagePruneCommand() *cobra.Command {
	var all, dryRun bool
	command := &cobra.Command{
		Use: "prune", Short: "Remove what no image needs any more, and with --all images that are not used", Args: cobra.NoArgs,
		Long: `Removes layers and other files that no image in the store needs, and the remains of broken downloads. With --all it also removes images
from which no named VM and no snapshot was made; running VMs without a name keep the files that they have open.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := c.store(nil)
			if err != nil {
				return err
			}
			pruned, err := pruneImages(cmd.Context(), store, all, nil, dryRun)
			removed, freed := "removed", "freed"
			if dryRun {
				removed, freed = "would remove", "would free"
			}
			for _, image := range pruned.Images {
				fmt.Fprintln(c.stdout, removed, image)
			}
			fmt.Fprintln(c.stdout, freed, bytesText(pruned.Bytes))
			return err
		},
	}
	command.Flags().BoolVar(&all, "all", false, "also images that no VM with a name and no snapshot was made of")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	return command
}

// pruneImages removes what no image needs, and with all the images that no VM and no snapshot needs: of those in shown, unless it is nil. It
// looks for them when no image can be added any more.
func pruneImages(ctx context.Context, store *images.Store, all bool, shown []images.Key, dryRun bool) (images.Pruned, error) {
	if !all {
		return store.Prune(ctx, nil, dryRun)
	}
	used := sync.OnceValues(func() (map[string]bool, error) { return usedImages(ctx, store) })
	return store.Prune(ctx, func(image *images.Image) (bool, error) {
		used, err := used()
		return !used[image.Name] && (shown == nil || slices.Contains(shown, image.Key())), err
	}, dryRun)
}

// usedImages returns the names of the images that VMs and snapshots need.
func usedImages(ctx context.Context, store *images.Store) (map[string]bool, error) {
	var refs []string
	named, err := vms()
	if err != nil {
		return nil, err
	}
	list, err := named.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		refs = append(refs, cmp.Or(v.Image, v.Config.Image, images.DefaultName()))
		if v.Info != nil {
			refs = append(refs, v.Info.Image)
		}
	}
	saved, err := snapshots()
	if err != nil {
		return nil, err
	}
	entries, err := saved.List()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Err != nil {
			return nil, fmt.Errorf("prune images: snapshot %s cannot be read, so the image that it needs is not known; remove it first: %w", e.Name, e.Err)
		}
		refs = append(refs, e.Meta.Image)
	}
	used := map[string]bool{}
	for _, ref := range refs {
		switch image, err := store.Find(ref); {
		case err == nil:
			used[image.Name] = true
		case !errors.Is(err, images.ErrNotFound):
			return nil, err
		}
	}
	return used, nil
}

func (c *cli) imagePullCommand() *cobra.Command {
	var config images.Config
	var of platform.Architecture
	command := &cobra.Command{
		Use: "pull IMAGE", Short: "Download an image, or put another into the store", Args: counted(1, 1),
		Example: "  agentvm image pull python:3.13-alpine\n  agentvm image pull --mirror docker.io=https://mirror.example.org python:3.13-alpine\n" +
			"  docker save app | agentvm image pull -",
		RunE: func(cmd *cobra.Command, args []string) error {
			progress := c.newProgress()
			defer progress.close()
			config.Logger, config.Input = c.log, c.stdin
			store, err := adviseDirectory(config.Open())
			if err != nil {
				return err
			}
			image, err := store.For(of).Pull(cmd.Context(), args[0], progress.report)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.stdout, image.Name)
			return nil
		},
	}
	platformFlag(command.Flags(), &of, anyPlatform)
	command.Flags().StringArrayVar(&config.RegistryMirrors, "mirror", nil, "ask `HOST=URL` instead of a registry, such as docker.io=https://mirror.example.org (may be repeated)")
	command.Flags().StringArrayVar(&config.InsecureRegistries, "insecure", nil, "do not check the certificate of this registry's `HOST`, and speak plain HTTP if it does (may be repeated)")
	return command
}

func (c *cli) imagePushCommand() *cobra.Command {
	var config images.Config
	var of platform.Architecture
	command := &cobra.Command{
		Use: "push IMAGE [docker://NAME[:TAG]]", Short: "Send an image of the store to a registry", Args: counted(1, 2), ValidArgsFunction: completeImages,
		Long: `Without a second argument the image goes where its name says. Prints its name there, with the digest of its manifest.

Configuration and layers are those of the store. Layers are compressed with gzip, so their digests, and the manifest's, may differ from those where
the image came from. Images of one archive, such as imports and Alpine, get it as their only layer. An image that is there for both platforms goes
as both, below one index. The credentials are those of docker login.`,
		Example: "  agentvm image push registry.example.org/team/app:1\n  agentvm image push app docker://registry.example.org/team/app:1",
		RunE: func(cmd *cobra.Command, args []string) error {
			progress := c.newProgress()
			defer progress.close()
			config.Logger = c.log
			store, err := adviseDirectory(config.Open())
			if err != nil {
				return err
			}
			there, err := store.For(of).Push(cmd.Context(), args[0], append(args, "")[1], progress.report)
			progress.close()
			if err == nil {
				fmt.Fprintln(c.stdout, there)
			}
			return err
		},
	}
	command.Flags().StringArrayVar(&config.InsecureRegistries, "insecure", nil, "do not check the certificate of this registry's `HOST`, and speak plain HTTP if it does (may be repeated)")
	platformFlag(command.Flags(), &of, "default all that the image has")
	return command
}

func (c *cli) imageSaveCommand() *cobra.Command {
	var to string
	var of platform.Architecture
	command := &cobra.Command{
		Use: "save [-o FILE] IMAGE", Short: "Write an image of the store for other programs", Args: counted(1, 1), ValidArgsFunction: completeImages,
		Long: `Writes one of, with FILE - for standard output:

  FILE, docker-archive:FILE[:NAME:TAG]   what docker load reads
  oci-archive:FILE[:TAG]                 an archive of a directory in the OCI layout
  oci:DIR[:TAG]                          such a directory, to which the image is added`,
		Example: "  agentvm image save app | docker load\n  agentvm image save -o oci:./layout:v1 app",
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasSuffix(to, "-") && isTerminal(c.stdout) {
				return errors.New("save image: standard output is a terminal: name a file with -o FILE")
			}
			store, err := c.storeFor(of, nil)
			if err != nil {
				return err
			}
			progress := c.newProgress()
			defer progress.close()
			return store.Save(cmd.Context(), args[0], to, c.stdout, progress.report)
		},
	}
	command.Flags().StringVarP(&to, "output", "o", "-", "`FILE`, or a place such as oci:DIR[:TAG], oci-archive:FILE or docker-archive:FILE")
	platformFlag(command.Flags(), &of, anyPlatform)
	return command
}

func (c *cli) imageExportCommand() *cobra.Command {
	var to, memory string
	var wasi bool
	var of platform.Architecture
	command := &cobra.Command{
		Use: "export --wasi -o FILE.wasm IMAGE", Short: "Write an image as a WASI module, which any runtime runs", Args: counted(1, 1),
		ValidArgsFunction: completeImages,
		Long: `Boots the image and writes one module for WASI preview 1 with the machine, its memory and the root file system. It runs the image's
command, or its arguments, and ends with its exit code:

  wazero run FILE.wasm ls -la

Standard streams, variables and the runtime's directories are passed on; what the guest writes elsewhere is gone afterwards. Its network is
a connection to a listening socket of the runtime, if the first arguments are -net socket, as with modules of container2wasm.`,
		Example: "  agentvm image export --wasi -o alpine.wasm alpine",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case !wasi:
				return errors.New("export image: name the format: --wasi (agentvm image save writes archives)")
			case to == "":
				return errors.New("export image: name the file to write with -o FILE.wasm")
			}
			if _, err := os.Lstat(to); err == nil {
				return fmt.Errorf("export image: %s exists: remove it, or name another file", to)
			}
			size, err := settings.ParseSize(memory, 20)
			if err != nil || size == 0 {
				return fmt.Errorf("--memory %q: want a size, as 512M or 2G", memory)
			}
			progress := c.newProgress()
			defer progress.close()
			store, err := c.store(progress.report)
			if err != nil {
				return err
			}
			image, err := store.For(of).Resolve(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			disk, err := store.OpenRootDisk(image)
			if err != nil {
				return err
			}
			defer disk.Close()
			file, err := atomicfile.Create(to)
			if err != nil {
				return err
			}
			defer file.Discard()
			if err := vm.ExportWASI(cmd.Context(), image, disk, size, file); err != nil {
				return err
			}
			return file.CommitNew()
		},
	}
	command.Flags().BoolVar(&wasi, "wasi", false, "a module for WASI preview 1, the only format")
	command.Flags().StringVarP(&to, "output", "o", "", "`FILE` to write, which must not exist")
	command.Flags().StringVar(&memory, "memory", "256M", "the guest's memory, a `SIZE`")
	platformFlag(command.Flags(), &of, anyPlatform)
	return command
}

func (c *cli) imageInspectCommand() *cobra.Command {
	var of platform.Architecture
	command := &cobra.Command{
		Use: "inspect IMAGE...", Short: "Show what is known of images, as JSON", Args: counted(1, 0), ValidArgsFunction: completeImages,
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := c.storeFor(of, nil)
			if err != nil {
				return err
			}
			var list []*images.Image
			for _, name := range args {
				image, err := store.Find(name)
				if err != nil {
					return err
				}
				list = append(list, image)
			}
			encoder := json.NewEncoder(c.stdout)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			return encoder.Encode(list)
		},
	}
	platformFlag(command.Flags(), &of, anyPlatform)
	return command
}

func (c *cli) imageHistoryCommand() *cobra.Command {
	var of platform.Architecture
	command := &cobra.Command{
		Use: "history IMAGE", Short: "Show how an image was built", Args: counted(1, 1), ValidArgsFunction: completeImages,
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := c.storeFor(of, nil)
			if err != nil {
				return err
			}
			steps, err := store.History(args[0])
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "CREATED\tLAYER\tBY")
			for _, step := range steps {
				layer := "-"
				if step.Layer != "" {
					layer = step.Layer[:len("sha256:")+12]
				}
				created := "-" // a reproducible build may have no time
				if !step.Created.IsZero() {
					created = step.Created.Format("2006-01-02 15:04")
				}
				fmt.Fprintf(table, "%s\t%s\t%s\n", created, layer, printable(step.CreatedBy))
			}
			return table.Flush()
		},
	}
	platformFlag(command.Flags(), &of, anyPlatform)
	return command
}

func (c *cli) imageTagCommand() *cobra.Command {
	var of platform.Architecture
	command := &cobra.Command{
		Use: "tag IMAGE NAME", Short: "Give an image another name", Args: counted(2, 2), ValidArgsFunction: completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := c.storeFor(of, nil)
			if err != nil {
				return err
			}
			image, err := store.Tag(cmd.Context(), args[0], args[1])
			if err == nil {
				fmt.Fprintln(c.stdout, image.Name)
			}
			return err
		},
	}
	platformFlag(command.Flags(), &of, "default all that the image has")
	return command
}

func (c *cli) imageImportCommand() *cobra.Command {
	var of platform.Architecture
	command := &cobra.Command{
		Use: "import FILE NAME", Short: "Make an image of a root file system in a tar archive (- for standard input)",
		Long: `The archive may be compressed with gzip or zstd. Its programs must be for a platform of VMs. An image of that name and platform is
replaced. The names alpine and alpine:VERSION accept only the alpine-minirootfs file of a release to which this version is pinned.

The order of earlier versions, NAME FILE, still works where only the second is a file.`,
		Args: counted(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, name, err := fileAndName(args[0], args[1])
			if err != nil {
				return err
			}
			return c.importImage(cmd.Context(), name, file, of)
		},
	}
	platformFlag(command.Flags(), &of, "default that of its programs")
	return command
}

// fileAndName finds out which of two arguments is the archive: the first, or as earlier the second.
func fileAndName(first, second string) (file, name string, err error) {
	isFile := func(arg string) bool {
		_, err := os.Stat(arg)
		return arg == "-" || err == nil
	}
	switch {
	case !isFile(second):
		return first, second, nil
	case !isFile(first):
		return second, first, nil
	case strings.ContainsAny(first, `/\`) != strings.ContainsAny(second, `/\`): // no name has these
		if strings.ContainsAny(second, `/\`) {
			return second, first, nil
		}
		return first, second, nil
	}
	return "", "", fmt.Errorf("import image: there are files of both names, %s and %s: write the archive as ./FILE", first, second)
}

func (c *cli) importImage(ctx context.Context, name, file string, of platform.Architecture) error {
	archive := c.stdin
	if file != "-" {
		var err error
		if archive, err = openHostFile(file, os.O_RDONLY); err != nil {
			return fmt.Errorf("import image %s: %w", name, err)
		}
		defer archive.Close()
	} else if isTerminal(archive) {
		return errors.New("import image: standard input is a terminal, not an archive")
	}
	store, err := c.storeFor(of, nil)
	if err != nil {
		return err
	}
	progress := c.newProgress()
	image, err := store.Import(ctx, name, io.TeeReader(archive, progress.counting("importing "+name, io.Discard, fileSize(archive))))
	progress.close()
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, image.Name)
	return nil
}

func (c *cli) imageRemoveCommand() *cobra.Command {
	var of platform.Architecture
	command := &cobra.Command{
		Use: "rm IMAGE...", Aliases: []string{"remove"}, Short: "Remove images from the store", Args: counted(1, 0), ValidArgsFunction: completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := c.storeFor(of, nil)
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args {
				errs = append(errs, adviseImage(name, store.Remove(cmd.Context(), name)))
			}
			return errors.Join(errs...)
		},
	}
	platformFlag(command.Flags(), &of, "default all that the images have")
	return command
}

func (c *cli) store(progress images.ProgressFunc) (*images.Store, error) {
	return adviseDirectory(images.Config{Progress: progress, Logger: c.log, Input: c.stdin}.Open())
}

// adviseDirectory adds to an error what to do.
func adviseDirectory(store *images.Store, err error) (*images.Store, error) {
	if err != nil && !errors.Is(err, images.ErrMirror) && !errors.Is(err, images.ErrNoPlace) {
		err = fmt.Errorf("%w (set %s to a directory that can be written)", err, storeVariable)
	}
	return store, err
}
