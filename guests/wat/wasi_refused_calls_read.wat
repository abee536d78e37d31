;; A WASI command. validate asks for ever for the digest of an image that it has been given no right
;; to, and reads what its host replies.
(module
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "host" "call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 256) "{\"valid\":true}")
  (data (i32.const 352) "kubewarden")
  (data (i32.const 368) "oci")
  (data (i32.const 384) "v1/manifest_digest")
  (data (i32.const 512) "\"ghcr.io/team/web:1.0\"")

  (func (export "_start")
    (if (call $is_settings)
      (then
        (call $write (i32.const 1) (i32.const 256) (i32.const 14))
        (return)))
    (loop $for_ever
      (drop
        (call $host_call (i32.const 352) (i32.const 10) (i32.const 368) (i32.const 3)
          (i32.const 384) (i32.const 18) (i32.const 512) (i32.const 22)))
      ;; Reads up to 64 KiB: the reply and, at first, the request before it.
      (i32.store (i32.const 0) (i32.const 65536))
      (i32.store (i32.const 4) (i32.const 65536))
      (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (br $for_ever)))

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
