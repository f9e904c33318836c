package mount

// operation answers one type of message.
type operation struct {
	run func(*session, *request) error
	// mutates marks those that a read-only share refuses as a whole; Tlopen looks at its flags itself.
	mutates bool
	// quick ones run in the session's loop: they move no data and come by the thousands, one after the other, so that
	// handing them to another goroutine would cost more than it gains.
	quick bool
}

// operations is indexed by message type. Tflush is missing: the session's loop answers it.
var operations = [256]operation{
	msgTversion:     {run: (*session).version},
	msgTattach:      {run: (*session).attach},
	msgTwalk:        {run: (*session).walk, quick: true},
	msgTclunk:       {run: (*session).clunk, quick: true},
	msgTgetattr:     {run: (*session).getattr, quick: true},
	msgTsetattr:     {run: (*session).setattr, mutates: true},
	msgTstatfs:      {run: (*session).statfs},
	msgTreadlink:    {run: (*session).readlink},
	msgTlopen:       {run: (*session).lopen},
	msgTlcreate:     {run: (*session).lcreate, mutates: true},
	msgTread:        {run: (*session).read},
	msgTwrite:       {run: (*session).write, mutates: true},
	msgTfsync:       {run: (*session).fsync},
	msgTreaddir:     {run: (*session).readdir},
	msgTmkdir:       {run: (*session).mkdir, mutates: true},
	msgTsymlink:     {run: (*session).symlink, mutates: true},
	msgTmknod:       {run: (*session).mknod, mutates: true},
	msgTlink:        {run: (*session).link, mutates: true},
	msgTrename:      {run: (*session).rename, mutates: true},
	msgTrenameat:    {run: (*session).renameat, mutates: true},
	msgTunlinkat:    {run: (*session).unlinkat, mutates: true},
	msgTremove:      {run: (*session).remove, mutates: true},
	msgTlock:        {run: (*session).lock},
	msgTgetlock:     {run: (*session).getlock},
	msgTxattrwalk:   {run: (*session).xattr},
	msgTxattrcreate: {run: (*session).xattr, mutates: true},
}
