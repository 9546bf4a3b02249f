module redwarfs

go 1.24
