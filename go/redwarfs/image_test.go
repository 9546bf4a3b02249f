package redwarfs_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"redwarfs"
)

const vectors = "../../tests/vectors"

func rows(t *testing.T, name string) [][]string {
	t.Helper()
	file, err := os.Open(filepath.Join(vectors, name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var rows [][]string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		rows = append(rows, strings.Split(lines.Text(), "\t"))
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func open(t *testing.T, name string) *redwarfs.Image {
	t.Helper()
	image, err := redwarfs.Open(filepath.Join(vectors, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { image.Close() })
	return image
}

func compat(t *testing.T) *redwarfs.Image {
	return open(t, "../fixtures/compat/compat-v0.9.10.dwarfs")
}

var letters = map[fs.FileMode]string{
	0:                                 "f",
	fs.ModeDir:                        "d",
	fs.ModeSymlink:                    "l",
	fs.ModeDevice | fs.ModeCharDevice: "c",
	fs.ModeDevice:                     "b",
	fs.ModeNamedPipe:                  "p",
	fs.ModeSocket:                     "s",
}

func TestVectors(t *testing.T) {
	images := 0
	for _, row := range rows(t, "images.tsv") {
		name, file, expect := row[0], row[1], row[2]
		if expect != "ok" {
			continue
		}
		images++
		t.Run(name, func(t *testing.T) {
			image := open(t, file)
			for _, want := range rows(t, name+".tsv") {
				path, err := url.PathUnescape(want[0])
				if err != nil {
					t.Fatal(err)
				}
				if !fs.ValidPath(path) {
					// io/fs has no names that are not UTF-8.
					continue
				}
				if found := line(t, image, path, want); strings.Join(found, "\t") != strings.Join(want, "\t") {
					t.Fatalf("wanted %q\nfound  %q", want, found)
				}
			}
			if findings, err := image.Verify(true); findings != 0 || err != nil {
				t.Fatal(findings, err)
			}
		})
	}
	if images < 10 {
		t.Fatal("only", images, "images")
	}
}

func line(t *testing.T, image *redwarfs.Image, path string, want []string) []string {
	t.Helper()
	found, err := image.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	more := found.Sys().(*redwarfs.Attributes)
	value := "-"
	switch found.Mode().Type() {
	case 0:
		value = digest(t, image, path, want[9])
	case fs.ModeSymlink:
		target, err := image.ReadLink(path)
		if err != nil {
			t.Fatal(err)
		}
		value = "target:" + encoded(target)
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		major := more.Rdev>>32&0xfffff000 | more.Rdev>>8&0xfff
		minor := more.Rdev>>12&0xffffff00 | more.Rdev&0xff
		value = fmt.Sprintf("device:%d,%d", major, minor)
	}
	permissions := found.Mode().Perm()
	for bit, value := range map[fs.FileMode]fs.FileMode{
		fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000,
	} {
		if found.Mode()&bit != 0 {
			permissions |= value
		}
	}
	time := fmt.Sprint(found.ModTime().UnixNano())
	if want[8] == "-" {
		time = "-"
	}
	return []string{
		want[0], letters[found.Mode().Type()], fmt.Sprintf("%o", uint32(permissions)),
		fmt.Sprint(more.UID), fmt.Sprint(more.GID), fmt.Sprint(found.Size()), fmt.Sprint(more.Links),
		fmt.Sprint(more.Inode), time, value,
	}
}

func digest(t *testing.T, image *redwarfs.Image, path, want string) string {
	t.Helper()
	file, err := image.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	form := "sha256:"
	if strings.HasPrefix(want, "last4096:") {
		form = "last4096:"
		if _, err := file.(io.Seeker).Seek(-4096, io.SeekEnd); err != nil {
			t.Fatal(err)
		}
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		t.Fatal(err)
	}
	return form + hex.EncodeToString(hash.Sum(nil))
}

func encoded(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		if b < 0x21 || b > 0x7e || b == '%' {
			fmt.Fprintf(&out, "%%%02X", b)
		} else {
			out.WriteByte(b)
		}
	}
	return out.String()
}

func TestFailures(t *testing.T) {
	for _, row := range rows(t, "images.tsv") {
		path := filepath.Join(vectors, row[1])
		image, err := redwarfs.Open(path)
		var failure *redwarfs.Error
		var where *fs.PathError
		switch row[2] {
		case "ok":
			image.Close()
			continue
		case "damaged":
			if findings, err := image.Verify(false); findings != 1 || err != nil {
				t.Error(findings, err)
			}
			_, err = image.ReadFile("format.sh")
			if !errors.As(err, &failure) || failure.Code != redwarfs.Corrupt {
				t.Error(err)
			}
			image.Close()
		case "corrupt":
			if !errors.As(err, &failure) || failure.Code != redwarfs.Corrupt {
				t.Error(err)
			}
		case "not-an-image":
			if !errors.As(err, &failure) || failure.Code != redwarfs.NotAnImage || !errors.As(err, &where) || where.Path != path {
				t.Error(err)
			}
		default:
			t.Error(row)
		}
	}
	if _, err := redwarfs.Open("missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	path := filepath.Join(vectors, "../fixtures/compat/compat-v0.9.10.dwarfs\x00more")
	if _, err := redwarfs.Open(path); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	image := compat(t)
	for _, check := range []struct {
		path string
		want error
	}{
		{"missing", fs.ErrNotExist}, {"format.sh/more", fs.ErrNotExist}, {"format.sh\x00more", fs.ErrNotExist},
		{"/format.sh", fs.ErrInvalid}, {"dev/", fs.ErrInvalid}, {"../x", fs.ErrInvalid},
	} {
		if _, err := image.Open(check.path); !errors.Is(err, check.want) {
			t.Error(check.path, err)
		}
		if _, err := image.Stat(check.path); !errors.Is(err, check.want) {
			t.Error(check.path, err)
		}
	}
	if _, err := image.ReadDir("format.sh"); !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
	if _, err := image.ReadFile("dev"); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := image.ReadLink("dev"); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
}

func TestFS(t *testing.T) {
	for _, name := range []string{"compat/compat-v0.9.10", "compat/compat-v0.2.0", "images/many-fragmented", "images/audio-categorize"} {
		image := open(t, "../fixtures/"+name+".dwarfs")
		var some []string
		err := fs.WalkDir(image, ".", func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && len(some) < 10 {
				some = append(some, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := fstest.TestFS(image, some...); err != nil {
			t.Error(name, err)
		}
	}
}

func TestFile(t *testing.T) {
	image := compat(t)
	content, err := fs.ReadFile(image, "format.sh")
	if err != nil || len(content) != 94 {
		t.Fatal(len(content), err)
	}
	opened, err := image.Open("format.sh")
	if err != nil {
		t.Fatal(err)
	}
	file := opened.(*redwarfs.File)
	if err := iotest.TestReader(file, content); err != nil {
		t.Error(err)
	}
	if n, err := file.ReadAt(make([]byte, 10), 90); n != 4 || err != io.EOF {
		t.Error(n, err)
	}
	if _, err := file.ReadAt(nil, -1); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := file.Seek(-1, io.SeekStart); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
	section := io.NewSectionReader(file, 10, 20)
	if part, err := io.ReadAll(section); err != nil || !bytes.Equal(part, content[10:30]) {
		t.Error(part, err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		file.Close(), second(file.Stat()), second(file.Read(make([]byte, 1))),
		second(file.ReadAt(make([]byte, 1), 0)), second(file.Seek(0, 0)),
	} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestClose(t *testing.T) {
	image := compat(t)
	file, err := image.Open("format.sh")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := image.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		image.Close(), second(image.Open(".")), second(image.ReadFile("format.sh")),
		second(file.Read(make([]byte, 1))), second(entries[0].Info()),
	} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
	}
}

type broken struct {
	io.ReaderAt
	fails bool
}

func (b *broken) ReadAt(data []byte, offset int64) (int, error) {
	if b.fails {
		return 0, syscall.ETIMEDOUT
	}
	return b.ReaderAt.ReadAt(data, offset)
}

func TestReaders(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(vectors, "../fixtures/compat/compat-v0.9.10.dwarfs"))
	if err != nil {
		t.Fatal(err)
	}
	source := &broken{ReaderAt: bytes.NewReader(data)}
	image, err := redwarfs.New(source, int64(len(data)), redwarfs.Options{CacheSize: 1, NoReadahead: true, Check: true})
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if content, err := image.ReadFile("format.sh"); err != nil || len(content) != 94 {
		t.Error(len(content), err)
	}
	source.fails = true
	if _, err := redwarfs.New(source, int64(len(data)), redwarfs.Options{}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Error(err)
	}
	if _, err := redwarfs.New(source, -1, redwarfs.Options{}); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
}

func TestGoroutines(t *testing.T) {
	image := compat(t)
	opened, err := image.Open("format.sh")
	if err != nil {
		t.Fatal(err)
	}
	file := opened.(*redwarfs.File)
	want, _ := image.ReadFile("format.sh")
	var wait sync.WaitGroup
	for worker := range 16 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for n := range 200 {
				offset := (worker*31 + n) % 90
				data := make([]byte, 4)
				if _, err := file.ReadAt(data, int64(offset)); err != nil || !bytes.Equal(data, want[offset:offset+4]) {
					t.Error(offset, data, err)
				}
				if _, err := image.ReadDir("."); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
}

func TestHTTP(t *testing.T) {
	image := compat(t)
	server := httptest.NewServer(http.FileServer(http.FS(image)))
	defer server.Close()
	want, _ := image.ReadFile("format.sh")
	get := func(path, part string) (int, []byte) {
		request, _ := http.NewRequest("GET", server.URL+path, nil)
		if part != "" {
			request.Header.Set("Range", part)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, body
	}
	if code, body := get("/format.sh", ""); code != 200 || !bytes.Equal(body, want) {
		t.Error(code, body)
	}
	if code, body := get("/format.sh", "bytes=5-9"); code != 206 || !bytes.Equal(body, want[5:10]) {
		t.Error(code, body)
	}
	if code, body := get("/", ""); code != 200 || !bytes.Contains(body, []byte("format.sh")) {
		t.Error(code, body)
	}
	if code, _ := get("/missing", ""); code != 404 {
		t.Error(code)
	}
}

func TestChangedBytes(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(vectors, "../fixtures/compat/compat-v0.9.10.dwarfs"))
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for at := 0; at < len(data); at += 3 {
		changed := bytes.Clone(data)
		changed[at] ^= byte(1 << (at % 8))
		image, err := redwarfs.New(bytes.NewReader(changed), int64(len(changed)), redwarfs.Options{})
		if err != nil {
			failed++
			continue
		}
		entries := 0
		_ = fs.WalkDir(image, ".", func(path string, entry fs.DirEntry, err error) error {
			if entries++; entries > 1000 {
				return fs.SkipAll
			}
			if err == nil && entry.Type().IsRegular() {
				if _, err := image.ReadFile(path); err != nil {
					failed++
				}
			}
			return nil
		})
		image.Close()
	}
	if failed < 100 {
		t.Error("only", failed, "failures")
	}
}

func TestVerification(t *testing.T) {
	name := filepath.Join(vectors, "signed.bin")
	key := "signed:" + filepath.Join(vectors, "../fixtures/keys/ssh.pub")
	for _, verification := range []string{key, "digests", "checksums"} {
		image, err := redwarfs.OpenWith(name, redwarfs.Options{Verification: verification})
		if err != nil {
			t.Fatal(verification, err)
		}
		if _, err := fs.ReadFile(image, "only"); err != nil {
			t.Error(verification, err)
		}
		image.Close()
	}
	other := "signed:" + filepath.Join(vectors, "../fixtures/keys/minisign.pub")
	for _, verification := range []string{other, "believed", "signed:/none", "digests\x00"} {
		image, err := redwarfs.OpenWith(name, redwarfs.Options{Verification: verification})
		if err == nil {
			image.Close()
			t.Error(verification, "is accepted")
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[100] ^= 1
	options := redwarfs.Options{Verification: key, NoVerify: true}
	image, err := redwarfs.New(bytes.NewReader(data), int64(len(data)), options)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if _, err := fs.ReadFile(image, "only"); err == nil {
		t.Error("a changed block is read")
	}
}
