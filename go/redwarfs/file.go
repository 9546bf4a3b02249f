package redwarfs

import (
	"io"
	"io/fs"
	"sync"
)

// File is an open file of an image. Besides the methods of [fs.File], it has those of [io.ReaderAt],
// which several goroutines can use at once, and [io.Seeker].
type File struct {
	image *Image
	path  string
	info  *info

	mu     sync.Mutex
	offset int64
	closed bool
}

var (
	_ fs.File       = (*File)(nil)
	_ io.ReaderAt   = (*File)(nil)
	_ io.ReadSeeker = (*File)(nil)
)

// Stat returns the attributes of the file.
func (file *File) Stat() (fs.FileInfo, error) {
	if file.isClosed() {
		return nil, file.failed("stat", fs.ErrClosed)
	}
	return file.info, nil
}

// Read reads from the position of the file.
func (file *File) Read(data []byte) (int, error) {
	file.mu.Lock()
	defer file.mu.Unlock()
	if file.closed {
		return 0, file.failed("read", fs.ErrClosed)
	}
	count, err := file.read(data, file.offset)
	file.offset += int64(count)
	return count, err
}

// ReadAt reads from an offset. It returns [io.EOF] if there are fewer bytes.
func (file *File) ReadAt(data []byte, offset int64) (int, error) {
	if file.isClosed() {
		return 0, file.failed("read", fs.ErrClosed)
	}
	if offset < 0 {
		return 0, file.failed("read", fs.ErrInvalid)
	}
	count, err := file.read(data, offset)
	if err == nil && count < len(data) {
		err = io.EOF
	}
	return count, err
}

// Seek changes the position of the file.
func (file *File) Seek(offset int64, whence int) (int64, error) {
	file.mu.Lock()
	defer file.mu.Unlock()
	if file.closed {
		return 0, file.failed("seek", fs.ErrClosed)
	}
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += file.offset
	case io.SeekEnd:
		offset += file.info.Size()
	default:
		return 0, file.failed("seek", fs.ErrInvalid)
	}
	if offset < 0 {
		return 0, file.failed("seek", fs.ErrInvalid)
	}
	file.offset = offset
	return offset, nil
}

// Close closes the file.
func (file *File) Close() error {
	file.mu.Lock()
	defer file.mu.Unlock()
	if file.closed {
		return file.failed("close", fs.ErrClosed)
	}
	file.closed = true
	return nil
}

func (file *File) read(data []byte, offset int64) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	count, err := file.image.readAt(file.info, data, offset)
	if err != nil {
		return 0, file.failed("read", err)
	}
	if count == 0 {
		return 0, io.EOF
	}
	return count, nil
}

func (file *File) isClosed() bool {
	file.mu.Lock()
	defer file.mu.Unlock()
	return file.closed
}

func (file *File) failed(op string, err error) error {
	return &fs.PathError{Op: op, Path: file.path, Err: err}
}

// directory is an open directory.
type directory struct {
	image *Image
	path  string
	info  *info

	mu      sync.Mutex
	entries []fs.DirEntry
	listed  bool
	closed  bool
}

func (dir *directory) Stat() (fs.FileInfo, error) {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	if dir.closed {
		return nil, &fs.PathError{Op: "stat", Path: dir.path, Err: fs.ErrClosed}
	}
	return dir.info, nil
}

func (dir *directory) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: dir.path, Err: fs.ErrInvalid}
}

func (dir *directory) Close() error {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	if dir.closed {
		return &fs.PathError{Op: "close", Path: dir.path, Err: fs.ErrClosed}
	}
	dir.closed = true
	return nil
}

func (dir *directory) ReadDir(count int) ([]fs.DirEntry, error) {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	if dir.closed {
		return nil, &fs.PathError{Op: "readdir", Path: dir.path, Err: fs.ErrClosed}
	}
	if !dir.listed {
		entries, err := dir.image.list(uint32(dir.info.attributes.inode))
		if err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: dir.path, Err: err}
		}
		dir.entries, dir.listed = entries, true
	}
	left := dir.entries
	if count > 0 {
		if len(left) == 0 {
			return nil, io.EOF
		}
		left = left[:min(count, len(left))]
	}
	dir.entries = dir.entries[len(left):]
	return left, nil
}
