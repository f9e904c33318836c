@0xd0c1f6b28a3e9475;
# The protocol between a client and its daemon, after the handshake with the token (package daemon). The bootstrap capability of a
# connection is a Daemon. The rules for growth are those of guest.capnp.

using Go = import "/go.capnp";
using Guest = import "/guest/guestrpc/guest.capnp";
using Stream = import "/guest/capnprpc/stream.capnp";
$Go.package("daemonwire");
$Go.import("agentvm/internal/daemon/daemonrpc/daemonwire");

interface Daemon {
  info @0 () -> (info :DaemonInfo);

  awaitReady @1 (progress :Guest.LogSink) -> (failure :Stream.Failure);
  # Returns when the VM runs, or the reason why it cannot. `progress` may be null.

  start @2 (params :Guest.ExecParams, options :JobOptions) -> (job :Job, id :Text, failure :Stream.Failure);
  # Starts a program. params.stdin and params.holdMillis are ignored: see Job.input. A job that is not durable ends when
  # this capability is dropped.

  job @3 (id :Text) -> (job :Job, failure :Stream.Failure);
  # Another capability to a job. Dropping it does nothing to the job.

  jobs @4 () -> (jobs :List(JobInfo), failure :Stream.Failure);
  # Oldest first.

  stop @5 (graceMillis :UInt32) -> (failure :Stream.Failure);
  # Stops the VM and then the daemon. Without grace the VM is switched off. The connection ends soon after the answer, or
  # before it.

  stats @6 () -> (stats :Guest.Stats, failure :Stream.Failure);

  preview @7 () -> (place :PreviewPlace, failure :Stream.Failure);
  # Serves the VM's previews, unless it does already.

  files @8 () -> (files :Guest.Files, failure :Stream.Failure);
  # The guest's capability. Bulk data belong on a connection of their own: see Channel in package daemon.

  pause @9 () -> (failure :Stream.Failure);
  resume @10 () -> (failure :Stream.Failure);
  # Pausing a paused VM, or resuming a running one, does nothing.

  snapshot @11 (path :Text, comment :Text, layered :Bool) -> (json :Data, failure :Stream.Failure);
  # Writes the VM into a new file at an absolute path of the host, and returns the file's description (snapshot.Meta). `layered`
  # leaves out what has not changed since the file from which the VM was started.

  openLocalTcp @12 (host :Text, port :UInt16, purpose :LocalPurpose, toClient :Stream.Sink)
      -> (toGuest :Stream.Sink, local :Stream.Endpoint, failure :Stream.Failure);
  # Connects to a server inside the VM: host is an address of 127.0.0.0/8, ::1, or localhost (or empty) for 127.0.0.1 and then
  # ::1. It ends with the client's connection at the latest, which should be one for bulk.

  sockets @13 () -> (sockets :List(Guest.Socket), failure :Stream.Failure);
  # As Supervisor.sockets.

  confinement @14 () -> (layers :List(ConfinementLayer), failure :Stream.Failure);
  # What confines the daemon's process.

  flows @15 () -> (json :Data, failure :Stream.Failure);        # list of vm.Flow
  denials @16 () -> (json :Data, failure :Stream.Failure);      # list of egress.Event, newest last
  networkStats @17 () -> (json :Data, failure :Stream.Failure); # vm.NetworkStats
  policy @18 () -> (json :Data, failure :Stream.Failure);       # egress.Policy
  explain @19 (host :Text, port :UInt16, protocol :Text, addresses :List(Text)) -> (json :Data, failure :Stream.Failure); # egress.Decision
  # These are JSON because no one in between reads them.

  setPolicy @20 (json :Data, version :Text) -> (cut :UInt32, failure :Stream.Failure);
  # An egress.Policy, in the place of that with this version; "" is any. `cut` is how many flows it has ended.

  forward @21 (forward :Text) -> (address :Text, failure :Stream.Failure);
  # One more port, as nat.ParseForward reads it, until the VM ends. Returns the address at which it listens.

  disk @22 () -> (waits :Guest.Time, path :Text, failure :Stream.Failure);
  # Since when the guest waits for room on the host's disk, null when it does not, and for which file.

  console @23 () -> (text :Data, failure :Stream.Failure);
  # The end of what the kernel printed.

  change @24 (json :Data) -> (failure :Stream.Failure);
  # Changes settings of a VM that runs: a Change. JSON, because it grows.

  lendForward @25 (forward :Text) -> (address :Text, lent :LentForward, failure :Stream.Failure);
  # As forward, but the port is the client's: it is closed when `lent` is dropped, and later starts do not have it. Waits while the VM
  # boots.

  mounts @26 () -> (json :Data, failure :Stream.Failure);       # list of MountInfo
}

interface LentForward {
  ended @0 () -> (failure :Stream.Failure);
  # Answered when the port is closed: by another client, or with the VM, which is a failure.
}

struct PreviewPlace {
  id @0 :Text;            # of the VM, in the store of links
  port @1 :UInt16;        # of 127.0.0.1
  address @2 :Text;
}

struct ConfinementLayer {
  name @0 :Text;
  inForce @1 :Bool;
  note @2 :Text;          # why it is not, or its version
}

enum LocalPurpose {
  # Which rules apply to a connection into the VM.
  dial @0;                # those for a program in the VM
  fetch @1;               # those for a request to a server in the VM
}

interface Job {
  info @0 () -> (info :JobInfo);

  output @1 (from :UInt64, max :UInt32, waitMillis :UInt32)
      -> (chunks :List(JobChunk), next :UInt64, lost :UInt64, exit :Guest.Exit, timedOut :Bool, failure :Stream.Failure);
  # Output from a cursor on, which counts the bytes of both streams; 0 is the beginning. Waits up to waitMillis for a byte
  # or the end. `lost` bytes before the first chunk are no longer kept. `exit` is set when the program has ended and
  # nothing follows `next`. The cursor also says that everything before it has been read.

  input @2 (data :Data, end :Bool) -> (failure :Stream.Failure);
  # Bytes for standard input, one call at a time. Waits while the program does not read. EPIPE when it never will.

  signal @3 (number :Int32) -> (failure :Stream.Failure);
  kill @4 () -> (failure :Stream.Failure);
  resize @5 (size :Guest.Size) -> (failure :Stream.Failure);

  remove @6 () -> (failure :Stream.Failure);
  # Forgets a job that has ended, and its output. EBUSY while it runs.
}

enum DaemonState {
  starting @0;            # the VM boots
  running @1;
  stopping @2;
  failed @3;              # the VM could not be started, or has ended by itself; see DaemonInfo.error
  paused @4;
}

struct DaemonInfo {
  name @0 :Text;
  pid @1 :Int64;
  version @2 :Text;       # of the program
  image @3 :Text;
  kernel @4 :Text;        # release; empty until it runs
  state @5 :DaemonState;
  error @6 :Text;
  started @7 :Guest.Time; # the daemon
  memory @8 :UInt64;      # bytes
  mounts @9 :List(Text);  # host:guest[:ro]
  ports @10 :List(Text);  # forwards as they are: listening address -> port of the guest
  policy @11 :Text;       # the network's, in one line
  labels @12 :List(Text); # KEY=VALUE
  clients @13 :UInt32;    # connections that have shown the token, with this one
  jobs @14 :UInt32;       # that run
  config @15 :Data;       # JSON: what the VM was started with
  health @16 :Text;       # of the image's HEALTHCHECK: starting, healthy or unhealthy; empty: it has none
  sidecars @17 :Data;     # JSON: a list of SidecarInfo; empty: it has none
  platform @18 :Text;     # of the image, as linux/arm64; empty until it is known
}

struct JobOptions {
  durable @0 :Bool;       # continues without the client
  input @1 :Bool;         # calls of Job.input follow; otherwise standard input is params.input alone
  timeoutMillis @2 :UInt64; # 0: none
  maxOutput @3 :UInt64;   # bytes kept of a durable job's output, half of the beginning and half of the end; 0: 16 MiB
  label @4 :Text;
  adopt @5 :Bool;         # continues with the program that had params.key before the VM was saved; of params, args are for JobInfo
  received @6 :UInt64;    # as in Supervisor.adopt
}

struct JobInfo {
  id @0 :Text;
  label @1 :Text;
  args @2 :List(Text);
  started @3 :Guest.Time;
  ended @4 :Guest.Time;   # null while it runs
  exit @5 :Guest.Exit;    # null while it runs, or when it is not known
  timedOut @6 :Bool;
  durable @7 :Bool;
  terminal @8 :Bool;
  outputBytes @9 :UInt64; # written so far
  error @10 :Text;        # why there is no exit although it has ended
}

struct JobChunk {
  stream @0 :UInt8;       # 1: standard output, 2: standard error
  data @1 :Data;
}
