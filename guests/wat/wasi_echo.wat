;; A WASI command. validate denies with all of its input as the message, byte for byte. Reads up
;; to 8 MiB.
(module
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 130)
  (data (i32.const 256) "{\"valid\":true}")
  (data (i32.const 960) "0123456789abcdef")
  (data (i32.const 640) "{\"accepted\":false,\"message\":\"")

  (func (export "_start")
    (local $len i32) (local $answer i32) (local $end i32)
    (if (call $is_settings)
      (then
        (call $write (i32.const 1) (i32.const 256) (i32.const 14))
        (return)))
    (local.set $len (call $read (i32.const 65536)))
    (local.set $answer (i32.add (i32.const 65536) (local.get $len)))
    ;; The answer follows the input, with up to six bytes for each byte.
    (drop (memory.grow (i32.shr_u (i32.mul (local.get $len) (i32.const 6)) (i32.const 16))))
    (memory.copy (local.get $answer) (i32.const 640) (i32.const 29))
    (local.set $end
      (call $escape (i32.const 65536) (local.get $len) (i32.add (local.get $answer) (i32.const 29))))
    ;; The closing quote and brace.
    (i32.store16 (local.get $end) (i32.const 0x7d22))
    (call $write (i32.const 1) (local.get $answer)
      (i32.add (i32.sub (local.get $end) (local.get $answer)) (i32.const 2))))

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
    (i32.sub (local.get $to) (local.get $start)))

  ;; Copies text as the inside of a JSON string; returns the end of the copy.
  (func $escape (param $from i32) (param $len i32) (param $to i32) (result i32)
    (local $end i32) (local $byte i32)
    (local.set $end (i32.add (local.get $from) (local.get $len)))
    (block $done
      (loop $next
        (br_if $done (i32.eq (local.get $from) (local.get $end)))
        (local.set $byte (i32.load8_u (local.get $from)))
        (local.set $from (i32.add (local.get $from) (i32.const 1)))
        (if (i32.lt_u (local.get $byte) (i32.const 0x20))
          (then ;; \u00hh
            (i32.store (local.get $to) (i32.const 0x3030755c))
            (i32.store8 offset=4 (local.get $to) (i32.add (i32.const 48) (i32.shr_u (local.get $byte) (i32.const 4))))
            (i32.store8 offset=5 (local.get $to)
              (i32.load8_u offset=960 (i32.and (local.get $byte) (i32.const 15))))
            (local.set $to (i32.add (local.get $to) (i32.const 6)))
            (br $next)))
        (if (i32.or (i32.eq (local.get $byte) (i32.const 0x22)) (i32.eq (local.get $byte) (i32.const 0x5c)))
          (then ;; a backslash before quotes and backslashes
            (i32.store8 (local.get $to) (i32.const 0x5c))
            (local.set $to (i32.add (local.get $to) (i32.const 1)))))
        (i32.store8 (local.get $to) (local.get $byte))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (br $next)))
    (local.get $to)))
