package redwarfs

/*
#cgo pkg-config: redwarfs
#include <redwarfs.h>
#include <stdlib.h>

// The context is the number of a handle. It is a pointer in C only: Go must not see a pointer to nowhere.
int redwarfs_go_read_at(uintptr_t context, uint64_t offset, void *buffer, size_t length);
void redwarfs_go_release(uintptr_t context);

static int redwarfs_go_io_read_at(void *context, uint64_t offset, void *buffer, size_t length)
{
    return redwarfs_go_read_at((uintptr_t)context, offset, buffer, length);
}

static void redwarfs_go_io_release(void *context)
{
    redwarfs_go_release((uintptr_t)context);
}

static redwarfs_code redwarfs_go_open_io(uintptr_t context, uint64_t length,
                                         const redwarfs_open_options *options,
                                         redwarfs_image **image, redwarfs_error **error)
{
    redwarfs_io io = {sizeof io, (void *)context, length, redwarfs_go_io_read_at, redwarfs_go_io_release};
    return redwarfs_open_io(&io, options, image, error);
}
*/
import "C"

import (
	"io"
	"io/fs"
	"path"
	"runtime"
	"runtime/cgo"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Options says how to open an image. The zero value is the default.
type Options struct {
	// Check the consistency of all metadata.
	Check bool
	// NoVerify does not compare checksums of blocks. Damage then shows as wrong contents.
	NoVerify bool
	// NoReadahead does not decompress blocks ahead in other threads.
	NoReadahead bool
	// CacheSize is the number of bytes of decompressed blocks that are kept; 0 is 512 MiB.
	CacheSize uint64
	// ImageSize is the number of bytes of the image if it ends before the end of its file.
	ImageSize uint64
	// Verification is what the image must prove: "signed:KEY" with a public key of minisign or SSH or a file that has such
	// keys, "digests", or "checksums". What differs is refused, also with NoVerify.
	Verification string
}

// Image is an open image. Several goroutines can use it at once.
type Image struct {
	mu sync.RWMutex
	// Nil after Close.
	handle *C.redwarfs_image
}

// Open opens the image in a file.
func Open(name string) (*Image, error) {
	return OpenWith(name, Options{})
}

// OpenWith opens the image in a file with options.
func OpenWith(name string, options Options) (*Image, error) {
	// A text of C ends there.
	if strings.ContainsRune(name, 0) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EINVAL}
	}
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	cOptions, free, err := options.c(name)
	if err != nil {
		return nil, err
	}
	defer free()
	var handle *C.redwarfs_image
	var failure *C.redwarfs_error
	if C.redwarfs_open(cName, &cOptions, &handle, &failure) != C.REDWARFS_OK {
		return nil, &fs.PathError{Op: "open", Path: name, Err: taken(failure)}
	}
	return opened(handle), nil
}

// New opens the image in the first size bytes of a reader. The reader is used by several threads at once,
// until the image and all its files are closed.
func New(reader io.ReaderAt, size int64, options Options) (*Image, error) {
	if size < 0 {
		return nil, &fs.PathError{Op: "open", Path: "image", Err: fs.ErrInvalid}
	}
	cOptions, free, err := options.c("image")
	if err != nil {
		return nil, err
	}
	defer free()
	context := cgo.NewHandle(reader)
	var handle *C.redwarfs_image
	var failure *C.redwarfs_error
	code := C.redwarfs_go_open_io(C.uintptr_t(context), C.uint64_t(size), &cOptions, &handle, &failure)
	if code != C.REDWARFS_OK {
		return nil, &fs.PathError{Op: "open", Path: "image", Err: taken(failure)}
	}
	return opened(handle), nil
}

func opened(handle *C.redwarfs_image) *Image {
	image := &Image{handle: handle}
	runtime.SetFinalizer(image, func(image *Image) { _ = image.Close() })
	return image
}

// The options for C, and what frees them. The name is for an error.
func (options Options) c(name string) (C.redwarfs_open_options, func(), error) {
	none := func() {}
	if strings.ContainsRune(options.Verification, 0) {
		err := &fs.PathError{Op: "open", Path: name, Err: syscall.EINVAL}
		return C.redwarfs_open_options{}, none, err
	}
	var flags C.uint32_t
	if options.Check {
		flags |= C.REDWARFS_CHECK
	}
	if options.NoVerify {
		flags |= C.REDWARFS_NO_VERIFY
	}
	if options.NoReadahead {
		flags |= C.REDWARFS_NO_READAHEAD
	}
	chosen := C.redwarfs_open_options{
		size:       C.sizeof_redwarfs_open_options,
		flags:      flags,
		cache_size: C.uint64_t(options.CacheSize),
		image_size: C.uint64_t(options.ImageSize),
	}
	if options.Verification == "" {
		return chosen, none, nil
	}
	text := C.CString(options.Verification)
	chosen.verification = text
	return chosen, func() { C.free(unsafe.Pointer(text)) }, nil
}

// Close closes the image. Its open files and later calls fail with [fs.ErrClosed].
func (image *Image) Close() error {
	image.mu.Lock()
	defer image.mu.Unlock()
	if image.handle == nil {
		return fs.ErrClosed
	}
	C.redwarfs_close(image.handle)
	image.handle = nil
	runtime.SetFinalizer(image, nil)
	return nil
}

// with calls a function of the library while nobody closes the image.
func (image *Image) with(call func(*C.redwarfs_image, **C.redwarfs_error) C.redwarfs_code) error {
	image.mu.RLock()
	defer image.mu.RUnlock()
	if image.handle == nil {
		return fs.ErrClosed
	}
	var failure *C.redwarfs_error
	if call(image.handle, &failure) != C.REDWARFS_OK {
		return taken(failure)
	}
	return nil
}

func (image *Image) lookup(op, name string, flags C.uint32_t) (*info, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	// A text of C ends there, and no entry has such a name.
	if strings.ContainsRune(name, 0) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	var inode C.uint32_t
	err := image.with(func(handle *C.redwarfs_image, failure **C.redwarfs_error) C.redwarfs_code {
		return C.redwarfs_lookup(handle, cName, flags, &inode, failure)
	})
	if err == nil {
		var found *info
		if found, err = image.stat(uint32(inode), path.Base(name)); err == nil {
			return found, nil
		}
	}
	return nil, &fs.PathError{Op: op, Path: name, Err: err}
}

func (image *Image) stat(inode uint32, name string) (*info, error) {
	found := &info{name: name}
	err := image.with(func(handle *C.redwarfs_image, failure **C.redwarfs_error) C.redwarfs_code {
		return C.redwarfs_stat(handle, C.uint32_t(inode), &found.attributes, failure)
	})
	return found, err
}

// Open opens a file or directory, as [fs.FS]. Files are [File], and directories [fs.ReadDirFile]. Devices,
// FIFOs and sockets read as empty files.
func (image *Image) Open(name string) (fs.File, error) {
	found, err := image.lookup("open", name, 0)
	if err != nil {
		return nil, err
	}
	if found.IsDir() {
		return &directory{image: image, path: name, info: found}, nil
	}
	return &File{image: image, path: name, info: found}, nil
}

// Stat returns the attributes of an entry, or of its target if it is a symbolic link.
func (image *Image) Stat(name string) (fs.FileInfo, error) {
	found, err := image.lookup("stat", name, 0)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Lstat returns the attributes of an entry.
func (image *Image) Lstat(name string) (fs.FileInfo, error) {
	found, err := image.lookup("lstat", name, C.REDWARFS_NO_FOLLOW)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// ReadLink returns the target of a symbolic link.
func (image *Image) ReadLink(name string) (string, error) {
	found, err := image.lookup("readlink", name, C.REDWARFS_NO_FOLLOW)
	if err != nil {
		return "", err
	}
	if found.Mode()&fs.ModeSymlink == 0 {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	buffer := make([]byte, found.Size()+1)
	var length C.size_t
	err = image.with(func(handle *C.redwarfs_image, failure **C.redwarfs_error) C.redwarfs_code {
		return C.redwarfs_readlink(handle, found.attributes.inode,
			(*C.char)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)), &length, failure)
	})
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(buffer[:length]), nil
}

// ReadDir returns the entries of a directory, sorted by name.
func (image *Image) ReadDir(name string) ([]fs.DirEntry, error) {
	found, err := image.lookup("readdir", name, 0)
	if err != nil {
		return nil, err
	}
	entries, err := image.list(uint32(found.attributes.inode))
	if err != nil {
		return entries, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	return entries, nil
}

// ReadFile returns the contents of a file.
func (image *Image) ReadFile(name string) ([]byte, error) {
	found, err := image.lookup("read", name, 0)
	if err != nil {
		return nil, err
	}
	if found.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid}
	}
	// Metadata may lie about sizes, so memory grows with the bytes that are there.
	data := make([]byte, 0, min(uint64(found.attributes.size), mostAtOnce)+1)
	for {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		count, err := image.readAt(found, data[len(data):cap(data)], int64(len(data)))
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		}
		if count == 0 {
			return data, nil
		}
		data = data[:len(data)+count]
	}
}

// mostAtOnce is the number of bytes that ReadFile allocates before it has read any (64 MiB).
const mostAtOnce = 64 << 20

func (image *Image) readAt(found *info, data []byte, offset int64) (int, error) {
	if !found.Mode().IsRegular() {
		return 0, nil
	}
	var done C.size_t
	err := image.with(func(handle *C.redwarfs_image, failure **C.redwarfs_error) C.redwarfs_code {
		return C.redwarfs_read(handle, found.attributes.inode, C.uint64_t(offset),
			unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), &done, failure)
	})
	return int(done), err
}

func (image *Image) list(inode uint32) ([]fs.DirEntry, error) {
	var listing *C.redwarfs_directory
	err := image.with(func(handle *C.redwarfs_image, failure **C.redwarfs_error) C.redwarfs_code {
		return C.redwarfs_opendir(handle, C.uint32_t(inode), &listing, failure)
	})
	if err != nil {
		return nil, err
	}
	defer C.redwarfs_closedir(listing)
	entries := []fs.DirEntry{}
	for {
		var entry C.redwarfs_directory_entry
		var failure *C.redwarfs_error
		if C.redwarfs_readdir(listing, &entry, &failure) != C.REDWARFS_OK {
			return entries, taken(failure)
		}
		if entry.name == nil {
			return entries, nil
		}
		entries = append(entries, &dirEntry{
			image: image,
			name:  C.GoStringN(entry.name, C.int(entry.name_length)),
			inode: uint32(entry.inode),
			mode:  uint32(entry._type),
		})
	}
}

// Verify compares all checksums, and with deep also decompresses all blocks. It returns the number of
// damages.
func (image *Image) Verify(deep bool) (int, error) {
	var flags C.uint32_t
	if deep {
		flags = C.REDWARFS_DEEP
	}
	var findings C.uint64_t
	err := image.with(func(handle *C.redwarfs_image, failure **C.redwarfs_error) C.redwarfs_code {
		return C.redwarfs_verify(handle, flags, nil, nil, &findings, failure)
	})
	return int(findings), err
}

//export redwarfs_go_read_at
func redwarfs_go_read_at(context C.uintptr_t, offset C.uint64_t, buffer unsafe.Pointer, length C.size_t) C.int {
	reader := cgo.Handle(context).Value().(io.ReaderAt)
	count, err := reader.ReadAt(unsafe.Slice((*byte)(buffer), int(length)), int64(offset))
	if count == int(length) {
		return 0
	}
	if number, ok := err.(syscall.Errno); ok && number != 0 {
		return C.int(number)
	}
	return C.int(syscall.EIO)
}

//export redwarfs_go_release
func redwarfs_go_release(context C.uintptr_t) {
	cgo.Handle(context).Delete()
}

// info is an fs.FileInfo.
type info struct {
	name       string
	attributes C.redwarfs_attributes
}

func (found *info) Name() string { return found.name }

func (found *info) Size() int64 { return int64(min(found.attributes.size, 1<<63-1)) }

func (found *info) Mode() fs.FileMode { return mode(uint32(found.attributes.mode)) }

func (found *info) ModTime() time.Time {
	return time.Unix(int64(found.attributes.mtime), int64(found.attributes.mtime_nsec))
}

func (found *info) IsDir() bool { return found.Mode().IsDir() }

// Sys returns an *[Attributes].
func (found *info) Sys() any {
	return &Attributes{
		Inode: uint32(found.attributes.inode),
		Links: uint32(found.attributes.links),
		UID:   uint32(found.attributes.uid),
		GID:   uint32(found.attributes.gid),
		Rdev:  uint64(found.attributes.rdev),
	}
}

// Attributes are what an [fs.FileInfo] of an image has besides its methods.
type Attributes struct {
	// Inode is the number of the inode in the image.
	Inode uint32
	// Links is the number of names.
	Links uint32
	// UID and GID are the owner and the group.
	UID, GID uint32
	// Rdev is the number of a device, in the encoding of the system that made the image.
	Rdev uint64
}

// mode is the mode of Go for a mode of Linux.
func mode(st uint32) fs.FileMode {
	mode := fs.FileMode(st & 0o777)
	switch st & syscall.S_IFMT {
	case syscall.S_IFDIR:
		mode |= fs.ModeDir
	case syscall.S_IFLNK:
		mode |= fs.ModeSymlink
	case syscall.S_IFBLK:
		mode |= fs.ModeDevice
	case syscall.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		mode |= fs.ModeSocket
	}
	for bit, wanted := range map[uint32]fs.FileMode{
		syscall.S_ISUID: fs.ModeSetuid,
		syscall.S_ISGID: fs.ModeSetgid,
		syscall.S_ISVTX: fs.ModeSticky,
	} {
		if st&bit != 0 {
			mode |= wanted
		}
	}
	return mode
}

// dirEntry is an fs.DirEntry.
type dirEntry struct {
	image *Image
	name  string
	inode uint32
	mode  uint32
}

func (entry *dirEntry) Name() string { return entry.name }

func (entry *dirEntry) IsDir() bool { return entry.Type().IsDir() }

func (entry *dirEntry) Type() fs.FileMode { return mode(entry.mode).Type() }

func (entry *dirEntry) Info() (fs.FileInfo, error) {
	found, err := entry.image.stat(entry.inode, entry.name)
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (entry *dirEntry) String() string { return fs.FormatDirEntry(entry) }
