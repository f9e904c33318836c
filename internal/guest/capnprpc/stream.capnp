@0xb7c64d1e0f2a9835;
# Streams of bytes between the two ends of a connection, and how a call reports its failure. The rules for growth are those of
# guest.capnp.

using Go = import "/go.capnp";
$Go.package("streamwire");
$Go.import("agentvm/internal/guest/capnprpc/streamwire");

interface Sink @0x8851004f116a44b3 {
  # One direction of a byte stream, served by its receiver. `send` and `end` are called in the order of the stream.
  # A send is answered when its bytes have been taken; the sender leaves at most 8 sends of at most 256 KiB unanswered.
  # Dropping the capability without `end` means that the stream broke off.

  send @0 (data :Data) -> (failure :Failure);

  end @1 () -> (failure :Failure);
  # Nothing follows. Answered when the receiver has processed the stream; the failure is the receiver's.

  abort @2 (failure :Failure) -> ();
  # Nothing follows, and the stream is not complete. After `end`, where the stream is one direction of a connection: the sender reads
  # the other direction no more either, and the connection is closed.
}

struct Endpoint {
  address @0 :Data;       # 4 or 16 bytes; all zero: any address
  port @1 :UInt16;
}

enum FailureKind {
  system @0;              # a system call failed: see errno
  invalid @1;             # the request makes no sense
  state @2;               # right request at the wrong time
  limit @3;               # a limit in the guest is reached
}

struct Failure {
  kind @0 :FailureKind;
  errno @1 :Int32;        # Linux number (asm-generic); 0: none
  reason @2 :Text;
}
