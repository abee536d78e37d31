;; A WASI command. validate asks twice for the digest of an image that it has been given no right
;; to, and reads the error text from standard input after each call. The message of its denial is
;; the first text, a bar, and the second. It traps when a call succeeds. Reads up to 8 MiB.
(module
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "host" "call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 130)
  (data (i32.const 256) "{\"valid\":true}")
  (data (i32.const 352) "kubewarden")
  (data (i32.const 368) "oci")
  (data (i32.const 384) "v1/manifest_digest")
  (data (i32.const 512) "\"ghcr.io/team/web:1.0\"")
  (data (i32.const 640) "{\"accepted\":false,\"message\":\"")

  (func (export "_start")
    (local $end i32)
    (if (call $is_settings)
      (then
        (call $write (i32.const 1) (i32.const 256) (i32.const 14))
        (return)))
    (drop (call $read (i32.const 65536)))
    (memory.copy (i32.const 65536) (i32.const 640) (i32.const 29))
    (local.set $end (i32.const 65565))
    (if (i32.ne (i32.const 1)
          (call $host_call (i32.const 352) (i32.const 10) (i32.const 368) (i32.const 3)
            (i32.const 384) (i32.const 18) (i32.const 512) (i32.const 22)))
      (then unreachable))
    (local.set $end (i32.add (local.get $end) (call $read (local.get $end))))
    (i32.store8 (local.get $end) (i32.const 0x7c))
    (local.set $end (i32.add (local.get $end) (i32.const 1)))
    (if (i32.ne (i32.const 1)
          (call $host_call (i32.const 352) (i32.const 10) (i32.const 368) (i32.const 3)
            (i32.const 384) (i32.const 18) (i32.const 512) (i32.const 22)))
      (then unreachable))
    (local.set $end (i32.add (local.get $end) (call $read (local.get $end))))
    ;; The closing quote and brace. The text needs no escape: there is no quote in it.
    (i32.store16 (local.get $end) (i32.const 0x7d22))
    (call $write (i32.const 1) (i32.const 65536) (i32.sub (local.get $end) (i32.const 65534))))

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
      (br_if $more (local.get $len))))

  ;; Reads standard input until it reports its end; returns how much there was.
  (func $read (param $to i32) (result i32)
    (local $start i32)
    (local.set $start (local.get $to))
    (loop $more
      (i32.store (i32.const 0) (local.get $to))
      (i32.store (i32.const 4) (i32.const 65536))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
      (local.set $to (i32.add (local.get $to) (i32.load (i32.const 8))))
      (br_if $more (i32.load (i32.const 8))))
    (i32.sub (local.get $to) (local.get $start))))
