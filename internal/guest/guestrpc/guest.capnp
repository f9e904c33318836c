@0xe3308bb570b8dc01;
# The protocol between host and guest on the control stream and on the bulk stream. The guest's bootstrap capability is a Supervisor,
# or a Bulk. Every other object is reached through it, so that each side can call only what the other handed over.
#
# Rules for growth: methods, fields and enumerants are only ever added, at the end. A change that an older peer would
# misunderstand raises the protocol number of the hello (hello.go) instead.
#
# Errors are values: a method that can fail returns a Failure. Cap'n Proto exceptions are for broken connections and unknown
# methods.

using Go = import "/go.capnp";
using Stream = import "/guest/capnprpc/stream.capnp";
$Go.package("guestwire");
$Go.import("agentvm/internal/guest/guestrpc/guestwire");

interface Supervisor extends (Loopback) {
  start @0 (params :StartParams) -> (info :GuestInfo, failure :Stream.Failure);
  # The first call after the hello: sets the clock, the host name and the environment, mounts the shares. With `restored` it may be
  # called again in the same session: what an earlier start set up is replaced.

  exec @1 (params :ExecParams) -> (process :Process, output :Output, failure :Stream.Failure);
  # Runs a program. Returns when it has ended, or after params.holdMillis with its output until then, so that a short
  # program costs one message each way. `process` is null when `output` has the exit.

  openShell @2 (params :ExecParams) -> (shell :Shell, failure :Stream.Failure);
  # Starts a shell that runs one command after another. Uses dir, env, user, and args[0] as the shell (/bin/sh when
  # empty); the other fields are ignored.

  pollStats @3 () -> (stats :Stats, failure :Stream.Failure);

  syncClock @4 (time :Time) -> (failure :Stream.Failure);

  shutdown @5 () -> (failure :Stream.Failure) $Go.name("powerOff");
  # Ends every process, writes back and unmounts the disks, and powers off. The machine may be off before the answer.
  # (In Go, a server's method Shutdown means that its capability has been dropped.)

  sockets @6 (query :SocketQuery) -> (sockets :List(Socket), failure :Stream.Failure);
  # The TCP and UDP sockets of the VM with their processes: all except those in TIME_WAIT, at most 4096, or the one that
  # `query` names.

  reportDeny @7 (lines :List(Text)) -> (failure :Stream.Failure);
  # Appends lines about refused connections to /run/agentvm/denials, for programs in the VM to read. The file is capped.

  openLocalTcp @8 (host :Text, port :UInt16, toClient :Stream.Sink) -> (toGuest :Stream.Sink, failure :Stream.Failure);
  # Connects to a server inside the VM: host is 127.0.0.1, ::1, or localhost (or empty) for 127.0.0.1 and then ::1.
  # Loopback.connect on the bulk port does the same without delaying control.

  mountShare @9 (mount :Mount, time :Time) -> (failure :Stream.Failure);
  # Mounts one more share, until unmountShare or the next start. EBUSY where something is mounted at its target already. `time` is as that of
  # Layer.discard.

  unmountShare @10 (target :Text, detach :Bool) -> (failure :Stream.Failure);
  # Unmounts a share of mountShare. EBUSY while a program uses it; with `detach` its path is free nevertheless, and it ends with its last user.
  # It is no failure when a program of the VM has unmounted it already.

  adopt @11 (key :Text, received :UInt64, stdin :Stdin) -> (process :Process, failure :Stream.Failure);
  # Continues with a program that an earlier session started with that key, and that this one's start has named in restored.programs. Its
  # output follows from the host's `received` bytes on, of both streams together; its input, unless it has ended or never was, with `stdin`,
  # and ends without one. ENOENT when there is none.

  writeBack @12 () -> (failure :Stream.Failure);
  # Writes to the disks what file systems have in memory (sync(2)).
}

interface Loopback {
  # The VM's own loopback interface, for the host. Its bytes belong on the bulk port.

  connect @0 (host :Text, port :UInt16, toClient :Stream.Sink) -> (toGuest :Stream.Sink, local :Stream.Endpoint, failure :Stream.Failure);
  # Connects to a server inside the VM: host is an address of 127.0.0.0/8, ::1, or localhost (or empty) for 127.0.0.1 and
  # then ::1. `local` is the connection's local address.

  listenLocalTcp @1 (host :Text, port :UInt16, backlog :UInt16, acceptor :Acceptor)
      -> (listener :Listener, local :Stream.Endpoint, failure :Stream.Failure);
  # Listens inside the VM: host is as above, except that localhost is 127.0.0.1; port 0 is any free one. Connections of programs in
  # the VM are handed to `acceptor`. Listening ends with `listener`, and with the session in any case. A listener that ends by itself
  # drops `acceptor`.
}

interface Acceptor {
  # Served by the host.

  accept @0 (remote :Stream.Endpoint, toProgram :Stream.Sink) -> (toHost :Stream.Sink, failure :Stream.Failure);
  # A program has connected; remote is its address. Answered when the host takes the connection. With a failure the program sees a
  # reset. The guest leaves at most `backlog` calls unanswered.
}

interface Listener {
  # Dropping the capability closes it. Connections that were accepted stay.

  close @0 () -> (failure :Stream.Failure);
  # Answered when the port is free.
}

interface Bulk extends (Files, Loopback) {
  # The bootstrap capability of the console port agentvm.bulk.
}

interface NetworkProxy {
  # Served by the host: the servers that programs in the VM reach through unixSockets.

  connect @0 (target :ProxyTarget, toClient :Stream.Sink) -> (toServer :Stream.Sink, denied :Stream.Failure);
}

struct ProxyTarget {
  union {
    socket @0 :Text;      # UnixSocket.id
    tcp @1 :TcpTarget;
  }
}

struct TcpTarget {
  host @0 :Text;
  port @1 :UInt16;
}

interface Files {
  # The VM's files, as root sees them, on the console port agentvm.bulk. Paths are absolute. Paths and names are any bytes except
  # NUL. A symbolic link at the end of a path is not followed, unless a method says so.

  stat @0 (path :Data, follow :Bool) -> (info :FileInfo, failure :Stream.Failure);

  list @1 (path :Data, max :UInt32) -> (entries :List(FileInfo), more :Directory, failure :Stream.Failure);
  # At most `max` entries in no order (0: as many as fit a message). `more` has the rest and is null when there is none.

  open @2 (path :Data, options :OpenOptions) -> (file :File, info :FileInfo, failure :Stream.Failure);
  # Opens a regular file; follows links unless the write is atomic.

  remove @3 (path :Data, recursive :Bool) -> (failure :Stream.Failure);

  makeDir @4 (path :Data, mode :UInt32, parents :Bool) -> (failure :Stream.Failure);
  # With `parents` also the directories above, and it is no failure when it exists.

  rename @5 (from :Data, to :Data) -> (failure :Stream.Failure);

  symlink @6 (target :Data, path :Data) -> (failure :Stream.Failure);

  chmod @7 (path :Data, mode :UInt32) -> (failure :Stream.Failure);
  # Follows links.

  chown @8 (path :Data, uid :UInt32, gid :UInt32, follow :Bool) -> (failure :Stream.Failure);
  # 0xffffffff leaves one as it is.

  pack @9 (paths :List(Data), options :PackOptions, sink :Stream.Sink) -> (summary :Summary, failure :Stream.Failure);
  # Sends a tar archive (PAX) of the paths and what is below them. Returns after the sink's end.

  unpack @10 (dir :Data, options :UnpackOptions) -> (sink :Stream.Sink, failure :Stream.Failure);
  # The sink takes a tar archive. Its `end` is answered when all is in place.

  layer @11 (target :Data) -> (layer :Layer, began :Time, failure :Stream.Failure, interrupted :UInt64);
  # What was changed in the copy-on-write mount at `target`, and since when changes are kept; `interrupted` is the last apply that has begun and
  # not settled, 0: none. `/` is what was changed of the image, which can only be packed.
}

interface Layer {
  # The upper directory of an overlay. Paths are below it, without a slash at the front.

  next @0 () -> (entries :List(LayerEntry), end :Bool, failure :Stream.Failure);
  # All entries, in parts; each directory comes before what is in it.

  open @1 (path :Data) -> (file :File, info :FileInfo, failure :Stream.Failure);
  # Opens a regular file of the layer for reading.

  settle @2 (files :List(LayerEntry), began :Time) -> (failure :Stream.Failure);
  # The host's files are the guest's now: each of `files`, of which path and base are used, has that base from now on. `began`, unless null,
  # is since when changes are kept. An apply that has begun is complete with it.

  discard @3 (paths :List(Data), time :Time) -> (failure :Stream.Failure);
  # Drops the changes at these paths and below them, all without paths. Fails while a program uses the mount. `time` is the host's, since when
  # the changes of a layer are kept that begins with this call; null: the guest's clock says it.

  pack @4 (sink :Stream.Sink) -> (summary :Summary, failure :Stream.Failure);
  # Sends the layer as a tar archive with whiteouts (OCI image specification, layer.md). Returns after the sink's end.

  begin @5 (apply :UInt64) -> (failure :Stream.Failure);
  # The host begins to make its files what the layer has; `apply` is a random number that is not 0.
}

struct LayerEntry {
  path @0 :Data;
  info @1 :FileInfo;      # without a name
  kind @2 :LayerKind;
  base @3 :Data;          # which of the host's files it is a copy of, as the host's server said when it was copied; empty: of none
  torn @4 :Bool;          # it was changed shortly before an end of the machine that was not clean, and not since: it may be incomplete
}

enum LayerKind {
  change @0;              # a file, directory or link
  removal @1;             # nothing is here, whatever the host has
  opaque @2;              # a directory in which only the layer's entries are
}

interface Directory {
  next @0 (max :UInt32) -> (entries :List(FileInfo), end :Bool, failure :Stream.Failure);
}

interface File {
  # An open file. Dropping the capability closes it; what was written atomically and not committed is removed.

  read @0 (offset :UInt64, count :UInt32) -> (data :Data, end :Bool, failure :Stream.Failure);
  # At most 256 KiB. `end` says that the file ends after `data`.

  write @1 (offset :UInt64, data :Data) -> (failure :Stream.Failure);

  truncate @2 (size :UInt64) -> (failure :Stream.Failure);

  stat @3 () -> (info :FileInfo, failure :Stream.Failure);

  commit @4 () -> (failure :Stream.Failure);
  # Writes the file back to the disk (fsync) and then, when the write is atomic, gives it its name. After that all other calls fail.
}

struct FileInfo {
  name @0 :Data;          # last name of the path
  mode @1 :UInt32;        # st_mode of Linux, with the type
  size @2 :UInt64;
  modified @3 :Time;
  uid @4 :UInt32;
  gid @5 :UInt32;
  links @6 :UInt32;
  inode @7 :UInt64;
  target @8 :Data;        # of a symbolic link
  torn @9 :Bool;          # see LayerEntry; of stat only
}

struct OpenOptions {
  read @0 :Bool;
  write @1 :Bool;
  create @2 :Bool;
  exclusive @3 :Bool;     # with create: it must not exist
  truncate @4 :Bool;
  atomic @5 :Bool;        # write to a new file that takes the path's place at commit; implies write and create
  mode @6 :UInt32;        # permissions of a file that is created; an atomic write that replaces a regular file keeps its
                          # permissions and owner where this is 0
}

struct PackOptions {
  dir @0 :Data;           # paths are relative to it and named so; empty: paths are absolute, and named by their last name
  followPaths @1 :Bool;   # where a path itself is a symbolic link, pack its target
  oneFileSystem @2 :Bool; # leave out what is mounted below
}

struct UnpackOptions {
  setOwner @0 :Bool;      # everything belongs to uid and gid, whatever the archive says
  uid @1 :UInt32;
  gid @2 :UInt32;
}

struct Summary {
  entries @0 :UInt64;
  bytes @1 :UInt64;       # of file contents
  warnings @2 :List(Text); # what was left out or changed meanwhile; the first 16
  torn @3 :UInt64;        # files that may be incomplete, see LayerEntry
  tornFiles @4 :List(Text); # the first 16 of them
}

struct UnixSocket {
  path @0 :Text;          # in the VM, absolute; replaced when it exists as a socket
  id @1 :Text;            # for NetworkProxy.connect
  mode @2 :UInt32;        # permissions; 0: 0666
}

interface Process {
  # A running program. Dropping the capability while it runs kills it.

  poll @0 () -> (output :Output);
  # Returns when there is output or the program has ended; one call at a time. Output that the host does not poll fills a
  # bounded buffer, then the program's pipe, and then the program waits.

  signal @1 (number :Int32) -> (failure :Stream.Failure);
  # Sends a signal (Linux number) to the process group.

  kill @2 () -> (failure :Stream.Failure);
  # Ends the program and everything that it started, in whatever group or session that is.

  resize @3 (size :Size) -> (failure :Stream.Failure);
  # Changes the terminal's size; only with a terminal.
}

interface Shell {
  # A shell that runs one command after another. Dropping the capability kills it.

  run @0 (params :CommandParams) -> (process :Process, output :Output, failure :Stream.Failure);
  # Runs a command in the shell, one at a time, and answers like Supervisor.exec. The working directory, variables and
  # functions stay. Output.shellEnded says that the shell itself is gone (exit, exec, or a signal).
}

interface Stdin {
  # A program's standard input, served by the host. The guest asks for it, so that a program that does not read uses no memory.

  read @0 (max :UInt32) -> (data :Data, end :Bool);
  # Waits for at least one byte, returns at most `max`. `end` means that nothing follows `data`.
}

interface LogSink {
  log @0 (level :LogLevel, text :Text) -> ();
}

enum LogLevel { debug @0; info @1; warn @2; error @3; }

struct Time {
  seconds @0 :Int64;      # since 1970-01-01 UTC
  nanoseconds @1 :UInt32;
}

struct Size {
  columns @0 :UInt16;
  rows @1 :UInt16;
}

struct Mount {
  tag @0 :Text;           # virtio-fs mount tag
  target @1 :Text;        # absolute path, created when it is missing
  readOnly @2 :Bool;
  unused3 @3 :UInt32; # was 9P's message size
  copyOnWrite @4 :Bool;   # what the guest changes goes to a layer on the root's writable layer, see Files.layer
}

struct StartParams {
  time @0 :Time;          # null: leave the clock alone; otherwise also as that of Layer.discard
  hostname @1 :Text;
  env @2 :List(Text);     # KEY=VALUE, below every program's own environment
  mounts @3 :List(Mount);
  noNewPrivileges @4 :Bool; # also in flags; supervisors in snapshots of earlier versions know only this
  log @5 :LogSink;        # may be null
  network @6 :NetworkParams; # null: leave the network interface alone
  caCertificate @7 :Data; # PEM, appended to the image's bundles of trusted certificates; empty: leave them alone
  unixSockets @8 :List(UnixSocket);
  proxy @9 :NetworkProxy; # where unixSockets lead; may be null without them
  restored @10 :Restored; # null: the first start since the machine was switched on
  listenDenied @11 :List(PortRange); # TCP ports at which programs must not listen
  flags @12 :UInt64;      # settings that are on, bits of StartFlags in types.go
  hosts @13 :List(Text);  # ADDRESS NAME, for /etc/hosts, beside the machine's own name
  directories @14 :List(Text); # absolute paths; made, with what leads to them, when they are missing
}

struct PortRange {
  first @0 :UInt16;
  last @1 :UInt16;        # included
}

struct Restored {
  # The machine continues from a snapshot, and other machines may continue from the same one.
  entropy @0 :Data;       # at least 32 random bytes that no other machine receives
  generation @1 :UInt64;  # higher than that of the machine which the snapshot was taken of
  generationId @2 :Data;  # 16 bytes, another one each time
  newIdentity @3 :Bool;   # the machine gets a new machine-id, MAC and lease; its connections are reset
  mac @4 :Data;           # 6 bytes, for newIdentity; empty: the network interface keeps its own
  keepPrograms @5 :Bool;  # processes that ended programs left running continue; otherwise they are killed
  programs @6 :List(Text); # keys of programs whose output waits for adopt; that of others is discarded
}

struct NetworkParams {
  device @0 :Text;        # empty: eth0
  search @1 :List(Text);  # search domains of resolv.conf
  obsolete @2 :UInt32;    # was the time-out of DHCP; supervisors in snapshots of earlier versions read it as 3000 when it is 0
  address @3 :Data;       # IPv4, 4 bytes; empty: none
  prefixLength @4 :UInt8; # of the address's subnet, in bits
  gateway @5 :Data;       # IPv4, 4 bytes; empty: no default route
  mtu @6 :UInt16;         # 0: left alone
  dns @7 :List(Data);     # addresses for resolv.conf, 4 or 16 bytes each; none: the file is left alone
}

struct GuestInfo {
  release @0 :Text;       # kernel release
  bootNanoseconds @1 :UInt64; # kernel entry to this answer, monotonic clock
  networkWarning @2 :Text; # why the network is not as requested; empty: it is
  diskWarning @3 :Text;   # why the writable disk is smaller than it could be; empty: it is not
  unused4 @4 :Text;       # was a warning about shares
  flags @5 :UInt64;       # those of StartParams.flags that this supervisor knows, and has set
}

struct ExecParams {
  args @0 :List(Text);
  env @1 :List(Text);     # KEY=VALUE, wins over StartParams.env
  dir @2 :Text;           # empty: the user's home
  user @3 :Text;          # "name", "uid", "name:group" or "uid:gid"; empty: root
  terminal @4 :Size;      # null: three pipes
  input @5 :Data;         # first bytes of standard input
  stdin @6 :Stdin;        # the rest after `input`; null: there is none
  holdMillis @7 :UInt16;  # how long the answer may wait for the exit
  key @8 :Text;           # a later session can adopt it by this, unless it is empty
}

struct CommandParams {
  command @0 :Text;
  input @1 :Data;
  stdin @2 :Stdin;
  holdMillis @3 :UInt16;
}

struct Output {
  stdout @0 :Data;
  stderr @1 :Data;
  exit @2 :Exit;          # null while the program runs or has output left
  shellEnded @3 :Bool;
}

struct Exit {
  code @0 :UInt8;
  signal @1 :UInt8;       # Linux number; 0: ended by itself
  failure @2 :Stream.Failure;    # why the program could not be started (code 126 or 127)
}

struct Stats {
  uptimeNanoseconds @0 :UInt64;
  userNanoseconds @1 :UInt64;
  systemNanoseconds @2 :UInt64;
  idleNanoseconds @3 :UInt64;
  load1 @4 :Float32;
  load5 @5 :Float32;
  load15 @6 :Float32;
  memoryTotal @7 :UInt64; # bytes
  memoryFree @8 :UInt64;
  memoryAvailable @9 :UInt64;
  processes @10 :UInt32;
  receivedBytes @11 :UInt64;
  sentBytes @12 :UInt64;
  receivedPackets @13 :UInt64;
  sentPackets @14 :UInt64;
}

enum Transport { tcp @0; udp @1; }

struct SocketQuery {
  transport @0 :Transport;
  local @1 :Stream.Endpoint;
  remote @2 :Stream.Endpoint;
}

struct Socket {
  transport @0 :Transport;
  local @1 :Stream.Endpoint;
  remote @2 :Stream.Endpoint;    # port 0: not connected
  state @3 :UInt8;        # Linux number (include/net/tcp_states.h), also for UDP
  uid @4 :UInt32;
  pid @5 :UInt32;         # 0: no process has it open, or the one that had it has ended
  process @6 :Text;       # the kernel's short name of pid, at most 15 bytes
  family @7 :UInt8;       # 4 or 6; a socket of 6 may have IPv4 addresses; 0: as the addresses
}
