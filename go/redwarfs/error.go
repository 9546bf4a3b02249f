package redwarfs

/*
#include <redwarfs.h>
*/
import "C"

import (
	"io/fs"
	"syscall"
)

// Code is the kind of an [Error].
type Code int

// The codes. Later versions may add some.
const (
	IO           = Code(C.REDWARFS_ERROR_IO)
	NotAnImage   = Code(C.REDWARFS_ERROR_NOT_AN_IMAGE)
	Corrupt      = Code(C.REDWARFS_ERROR_CORRUPT)
	Unsupported  = Code(C.REDWARFS_ERROR_UNSUPPORTED)
	Limit        = Code(C.REDWARFS_ERROR_LIMIT)
	NotFound     = Code(C.REDWARFS_ERROR_NOT_FOUND)
	NotDirectory = Code(C.REDWARFS_ERROR_NOT_A_DIRECTORY)
	IsDirectory  = Code(C.REDWARFS_ERROR_IS_A_DIRECTORY)
	WrongType    = Code(C.REDWARFS_ERROR_WRONG_TYPE)
	Links        = Code(C.REDWARFS_ERROR_LINKS)
	Option       = Code(C.REDWARFS_ERROR_OPTION)
	Argument     = Code(C.REDWARFS_ERROR_ARGUMENT)
	Internal     = Code(C.REDWARFS_ERROR_INTERNAL)
	Unverified   = Code(C.REDWARFS_ERROR_UNVERIFIED)
)

// Error is an error of the library.
type Error struct {
	Code    Code
	Errno   syscall.Errno
	Message string
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is work with [fs.ErrNotExist], [fs.ErrInvalid] and numbers of the system.
func (e *Error) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e.Code == NotFound || e.Code == NotDirectory || e.Code == IO && e.Errno == syscall.ENOENT
	case fs.ErrInvalid:
		return e.Code == WrongType || e.Code == IsDirectory || e.Code == Argument
	}
	return e.Errno.Is(target) || target == error(e.Errno)
}

// taken frees an error of C, and returns it as one of Go.
func taken(failure *C.redwarfs_error) error {
	defer C.redwarfs_error_free(failure)
	return &Error{
		Code:    Code(C.redwarfs_error_code(failure)),
		Errno:   syscall.Errno(C.redwarfs_error_errno(failure)),
		Message: C.GoString(C.redwarfs_error_message(failure)),
	}
}
