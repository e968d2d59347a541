module example.com/floe-from-go

go 1.20
