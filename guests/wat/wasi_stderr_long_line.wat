;; A WASI command. validate writes 1 MiB without a line end to standard error and accepts.
(module
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 17)
  (data (i32.const 256) "{\"valid\":true}")
  (data (i32.const 288) "{\"accepted\":true}")

  (func (export "_start")
    (if (call $is_settings)
      (then
        (call $write (i32.const 1) (i32.const 256) (i32.const 14))
        (return)))
    (memory.fill (i32.const 65536) (i32.const 120) (i32.const 1048576))
    (call $write (i32.const 2) (i32.const 65536) (i32.const 1048576))
    (call $write (i32.const 1) (i32.const 288) (i32.const 17)))

  ;; Whether the first argument is `validate-settings`, by the dash in it.
  (func $is_settings (result i32)
    (if (call $args_get (i32.const 16) (i32.const 64)) (then unreachable))
    (i32.eq (i32.load8_u offset=8 (i32.load (i32.const 20))) (i32.const 45)))

  ;; Writes to standard output (1) or standard error (2).
  (func $write (param $stream i32) (param $from i32) (param $len i32)
    (loop $more
      (i32.store (i32.const 0) (local.get $from))
      (i32.store (i32.const 4) (local.get $len))
      (if (call $fd_write (local.get $stream) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
      (local.set $from (i32.add (local.get $from) (i32.load (i32.const 8))))
      (local.set $len (i32.sub (local.get $len) (i32.load (i32.const 8))))
      (br_if $more (local.get $len)))))
