//! Whatever is wrong with what the program is given, it says so in one line that names what and
//! where, and does nothing.

use std::path::Path;
use std::process::Output;

use crate::common::{floe, floe_in};
use floe_testkit::pattern;

/// A gzip file's header and a compressed block that ends too early.
const CUT_GZIP: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xed\xc0\x01";

const MSR: &str = "128166372003061629,hm,1,Read,383496192,32768,413\n";

/// Files, good and bad, that the tables below speak of.
fn files(folder: &Path) {
    let write =
        |name: &str, content: &[u8]| std::fs::write(folder.join(name), content).expect("a file");
    std::fs::create_dir(folder.join("folder")).expect("a folder");
    write("volume.img", &[0; 1 << 20]);
    write("odd.img", &[0; 1000]);
    std::fs::hard_link(folder.join("volume.img"), folder.join("hard.img")).expect("a link");
    std::os::unix::fs::symlink("volume.img", folder.join("soft.img")).expect("a link");
    write("folder/cache-0.json", &[0; 1 << 20]);
    write("nothing", b"");
    write("noise", &pattern(1, 4999));
    write("cut.csv.gz", CUT_GZIP);
    let late = MSR.repeat(500) + "128166372016382155,hm,1,Dream,310983168,65536,2\n";
    write("late.csv", late.as_bytes());
    write("good.csv", MSR.repeat(500).as_bytes());
    write("short.vscsi", &pattern(2, 33));
    let good = "cache = \"memory:1MiB\"\nblock-sizes = \"4KiB\"\n\n[[volume]]\nname = \
                \"a\"\nbacking = \"memory:4MiB\"\n";
    let toml = |name: &str, before: &str, after: &str| {
        write(&format!("{name}.toml"), format!("{before}{good}{after}").as_bytes());
    };
    toml("good", "", "");
    toml("unknown", "\ncach = 1\n", "");
    toml("type", "threads = \"two\"\n", "");
    toml("type-in-list", "listen = [5]\n", "");
    toml("type-in-tier", "", "[[tier]]\ncache = \"memory:1MiB\"\nvolatile = \"yes\"\n");
    toml("nqn", "nqn = \"floe\"\n", "");
    toml("syntax", "# one\nwrite = \"back\n", "");
    toml("twice", "", "name = \"b\"\n");
    toml("value", "\n\nwrite = \"sideways\"\n", "");
    toml("unknown-in-volume", "", "colour = \"red\"\n");
    toml("attach-value", "", "attach = \"iscsi\"\n");
    toml("share-alone", "", "share = true\n");
    toml("single", "backing = \"memory:4MiB\"\n", "");
    toml("same-name", "", "[[volume]]\nbacking = \"memory:4MiB\"\nname = \"a\"\n");
    toml("value-in-volume", "", "[[volume]]\nname = \"b\"\nbacking = \"disk:5\"\n");
    toml("shards", "shards = 2\nthreads = 3\n", "");
    toml("tier", "", "[[tier]]\ncache = \"memory:1MiB\"\nwrite = \"sideways\"\n");
    toml("tier-unknown", "", "[[tier]]\ncache = \"memory:1MiB\"\ncolour = \"red\"\n");
    toml("interval", "flush-interval = \"1s\"\n", "");
    toml("unitless", "write = \"back\"\nflush-interval = 5\n", "");
    toml("shareless", "write = \"back\"\ndirty-max = 12.5\n", "");
    toml("sizeless", "cache-size = 1048576\nthreads = 1.5\n", "");
    let times = |name: &str, policies: &str| {
        let text = format!("{{\"floe_service\":1,\n\"policies\":[{policies}]}}");
        write(&format!("{name}.json"), text.as_bytes());
    };
    write("version.json", b"{\"floe_service\": 9, \"policies\": []}");
    times("of-none", "");
    times("fly", r#"{"policy":"lru","times_us":{"fly":1}}"#);
    times("negative", r#"{"policy":"lru","times_us":{"lookup":-1}}"#);
    times("text", r#"{"policy":"lru","times_us":{"lookup":"1 µs"}}"#);
    times("lookup-only", r#"{"policy":"lru","times_us":{"lookup":1}}"#);
    times(
        "queues",
        r#"{"policy":"lru","times_us":{"head":{"alone":1,"contended":[[4,2],[2,3]]}}}"#,
    );
    write("binary.toml", b"\xff\xfe\0\x01");
    let rest = "listen = 'nbd://127.0.0.1:0'\nadmin = 'none'\n[[volume]]\nname = 'a'\n\
                backing = 'memory:4MiB'\n";
    let cache = "cache = \"memory:1MiB\"\n";
    for (name, text) in [
        ("quoted", format!("{cache}threads = \"4\"\n{rest}")),
        ("negative", format!("{cache}threads = -1\n{rest}")),
        ("list", format!("{cache}threads = [4]\n{rest}")),
        ("sizes", format!("{cache}block-sizes = [\"4KiB\", \"64KiB\"]\n{rest}")),
        ("sizes-of-numbers", format!("{cache}block-sizes = [4096, 65536]\n{rest}")),
        ("one-volume", "cache = \"memory:1MiB\"\n[volume]\nname = \"a\"\n".to_owned()),
        ("one-tier", format!("{rest}[tier]\ncache = \"memory:1MiB\"\n")),
        ("volume-text", format!("{cache}volume = \"a\"\n")),
        ("flag", format!("{cache}insecure = 1\n{rest}")),
        ("again", format!("{cache}threads = 1\nthreads = 2\n{rest}")),
        ("unquoted", format!("{cache}write = back\n{rest}")),
        ("section", format!("{cache}[server]\nthreads = 1\n")),
        ("certificates", format!("{cache}tls = \"on\"\ntls-certificates = \"/no/tls\"\n{rest}")),
        (
            "token",
            format!(
                "{cache}admin-token-file = \"/no/t\"\nadmin = \"127.0.0.1:0\"\n\
                          listen = \"nbd://127.0.0.1:0\"\n[[volume]]\nname = \"a\"\n\
                          backing = \"memory:4MiB\"\n"
            ),
        ),
        (
            "socket",
            format!(
                "{cache}listen = \"nbd+unix:///?socket=/no/floe.sock\"\n\
                           admin = \"none\"\n[[volume]]\nname = \"a\"\n\
                           backing = \"memory:4MiB\"\n"
            ),
        ),
        (
            "admin-socket",
            format!(
                "{cache}listen = \"nbd://127.0.0.1:0\"\n\n\
                                 admin = \"unix:/no/admin.sock\"\n[[volume]]\nname = \"a\"\n\
                                 backing = \"memory:4MiB\"\n"
            ),
        ),
        ("cache-folder", format!("# c\ncache = \"file:/no/c.img,size=4MiB\"\n{rest}")),
        ("tier-folder", format!("{cache}{rest}[[tier]]\n\ncache = \"file:/no/c.img,size=4MiB\"\n")),
        ("no-volume", format!("{cache}{rest}[[volume]]\nname = \"b\"\nbacking = \"./none.img\"\n")),
    ] {
        write(&format!("{name}.toml"), text.as_bytes());
    }
    write("latin.toml", b"# one\nname = \"\xe9\"\n");
    write("cacheless.toml", b"[[volume]]\nname = \"a\"\nbacking = \"memory:4MiB\"\n");
    write("volumeless.toml", b"cache = \"memory:1MiB\"\n");
}

/// Runs one command line in a folder of [`files`] and looks for these words on its one line of
/// complaint.
#[track_caller]
fn refused(folder: &Path, arguments: &[&str], words: &[&str]) {
    let Output { status, stdout, stderr } = floe_in(folder, arguments);
    let said = String::from_utf8(stderr).expect("complaints are UTF-8");
    let stdout = String::from_utf8_lossy(&stdout);
    assert_eq!(status.code(), Some(2), "floe {arguments:?}: {said}");
    assert_eq!(stdout, "", "floe {arguments:?}");
    assert_eq!(said.trim_end().lines().count(), 1, "floe {arguments:?}: {said}");
    assert!(said.starts_with("floe: "), "floe {arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in what floe {arguments:?} says: {said}");
    }
}

/// Each line a command line, `→`, and the words that must be in the complaint, apart by `|`.
#[track_caller]
fn all_refused(before: &[&str], table: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    files(folder.path());
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (arguments, words) = line.split_once('→').expect("a table with arrows");
        let arguments: Vec<&str> =
            before.iter().copied().chain(arguments.split_whitespace()).collect();
        let words: Vec<&str> = words.split('|').map(str::trim).collect();
        refused(folder.path(), &arguments, &words);
    }
    assert!(!folder.path().join("new.img").exists(), "a refused command made a file");
}

#[test]
fn wrong_command_lines_are_refused() {
    all_refused(
        &[],
        "
        nonsense                                  → 'nonsense'
        --nonsense                                → '--nonsense'
        serve --nonsense                          → '--nonsense'
        serve nonsense                            → 'nonsense'
        serve --backing                           → --backing | value is required
        status --nonsense                         → '--nonsense'
        status --admin nowhere                    → --admin | nowhere | HOST:PORT
        flush --admin 127.0.0.1:99999             → --admin | 127.0.0.1:99999
        flush now                                 → 'now'
        stop --force                              → '--force'
        restore now                               → 'now'
        volume nonsense                           → 'nonsense'
        volume list --admin nowhere               → --admin | nowhere | HOST:PORT
        volume add                                → <NAME> <SPEC>
        volume add a disk:5                       → <SPEC> | disk:5 | file:PATH
        volume add a memory:4MiB,colour=red       → <SPEC> | colour
        volume remove                             → <NAME>
        volume remove a b                         → 'b'
        volume resize a lots                      → [SIZE] | lots | 10GiB
        volume ana a lost                         → <STATE> | lost | inaccessible
        man                                       → <DIR>
        completions                               → <SHELL>
        completions tcsh                          → <SHELL> | 'tcsh' | zsh
        trace nonsense                            → 'nonsense'
        trace info                                → <FILE>
        simulate                                  → <TRACE>
        bench nonsense                            → 'nonsense'
        bench memory --nonsense                   → '--nonsense'
        advise                                    → <[NAME=]TRACE>
        advise t --cache nvme                     → --backing
        advise t --backing hdd                    → --cache
        advise t --backing tape --cache nvme      → --backing | tape | hdd
        advise t --backing s3,size=1GiB --cache nvme → --backing | s3,object=SIZE
        advise t --backing s3,object=1GiB --cache nvme → --backing | 64KiB
        advise t --backing s3 --cache nvme --s3-prices post=1 → --s3-prices | post | put, get
        advise t --backing hdd --cache tape=1GiB  → --cache | tape | hdd
        advise t --backing hdd --cache nvme=lots  → --cache | lots
        demo --nonsense                           → '--nonsense'
        demo --real --time soon                   → --time | 'soon'
        demo --time 1s                            → --real
        demo --volume /tmp                        → --real
        demo --real --volume /nonexistent/slow    → /nonexistent/slow
        ",
    );
}

#[test]
fn wrong_devices_are_refused() {
    all_refused(
        &["serve", "--admin", "127.0.0.1:0", "--listen", "nbd://127.0.0.1:0"],
        "
                                                                         → backing is missing
        --backing memory:4MiB                                            → cache is missing
        --backing disk:5 --cache memory:1MiB                             → backing | disk:5 | \
         file:PATH
        --backing file: --cache memory:1MiB                              → backing | no path
        --backing memory: --cache memory:1MiB                            → backing | no size
        --backing memory:lots --cache memory:1MiB                        → backing | lots
        --backing memory:4MiB --cache memory:1000                        → cache | 1000 | 4096
        --backing memory:4MiB --cache memory:0                           → cache | 0
        --backing memory:4MiB --cache memory:99999999999999999999        → cache | \
         99999999999999999999
        --backing memory:4MiB,medium=tape --cache memory:1MiB            → backing | tape | cloud
        --backing memory:4MiB,colour=red --cache memory:1MiB             → backing | colour
        --backing file:volume.img,size=1MiB,size=1MiB --cache memory:1MiB → backing | size | twice
        --backing file:missing.img --cache memory:1MiB                   → missing.img | No such \
         file
        --backing file:folder --cache memory:1MiB                        → folder | neither a \
         regular file
        --backing file:nothing --cache memory:1MiB                       → nothing | 0 bytes
        --backing file:odd.img --cache memory:1MiB                       → odd.img | 1000 bytes
        --backing file:volume.img,size=2MiB --cache memory:1MiB          → volume.img | 1048576 | \
         2097152
        --backing file:volume.img --cache file:volume.img                → same file
        --backing file:volume.img --cache file:./volume.img              → volume.img | in use
        --backing file:volume.img --cache file:hard.img → same file | volume.img | \
         hard.img | \"floe\"
        --backing file:soft.img --cache file:volume.img → same file | volume.img | \
         soft.img
        --backing file:volume.img --cache stripe:soft.img+nothing,size=1MiB → same file | soft.img
        --backing memory:4MiB --cache file:hard.img --tier ./soft.img    → tier 1 | same file | \
         hard.img | soft.img
        --backing memory:4MiB --cache file:new.img,size=1MiB --tier ./new.img,size=1MiB → tier 1 | \
         same file | new.img
        --backing memory:4MiB --cache stripe:soft.img+hard.img → hard.img is the same as soft.img
        --backing file:volume.img --cache memory:1MiB --memory 64MiB --service hard.img → \
         service | same file | hard.img
        --backing memory:4MiB --cache file:folder/cache-0.json --state-dir folder → cache | \
         folder/cache-0.json | state of a cache
        --backing memory:4MiB --cache file:new.img --cache-size 100000TiB → cache-size | 100000TiB \
         needs | of memory
        --backing memory:4MiB --cache file:new.img,size=1MiB --tier ./other.img,size=100000TiB → \
         tier 1 | 100000TiB needs | of memory
        --backing file:volume.img --cache ./folder --cache-size 1MiB     → folder | neither a \
         regular file
        --backing file:volume.img --cache file:new.img                   → cache-size is missing | \
         new.img
        --backing file:volume.img --cache file:/no/new.img,size=1MiB     → /no/new.img | No such \
         file
        --backing memory:4MiB --cache mirror:one.img                     → mirror:one.img | 1 halves
        --backing memory:4MiB --cache mirror:/no/a+/no/b,chunk=4KiB      → chunk | witness=FOLDER
        --backing memory:4MiB --cache mirror:/no/a+/no/a                 → /no/a | twice
        --backing memory:4MiB --cache mirror:/no/a+memory:1MiB           → memory:1MiB | be a half
        --backing memory:4MiB --cache mirror:/no/a+/no/b                 → cache-size is missing
        --backing memory:4MiB --cache memory:1MiB --backing memory:4MiB  → --backing | multiple
        ",
    );
    all_refused(
        &["check"],
        "
        memory:1MiB       → a cache in memory ends with its server
        missing.img       → missing.img does not exist
        ",
    );
}

#[test]
fn wrong_settings_are_refused() {
    let serve = ["serve", "--backing", "memory:4MiB", "--cache", "memory:1MiB"];
    all_refused(
        &serve,
        "
        --cache-size 2MiB                                     → cache-size is 2MiB | 1MiB
        --cache-size lots                                     → cache-size | lots
        --cache-size -1                                       → -1
        --write sideways                                      → write | sideways | around
        --wrte back                                           → --wrte | did you mean `--write`?
        --write back --flush-interval soon                    → flush-interval | soon | 5s
        --write back --flush-interval 0s                      → flush-interval | 0s
        --flush-interval 1s                                   → flush-interval | through
        --memory lots                                         → memory | lots | 64KiB
        --memory 64KiB                                        → memory | 64KiB is too small | 1MiB
        --memory 1EiB → memory | 1048576TiB | more than this machine has
        --memory-write back                                   → memory-write | give memory
        --memory-freeze adaptive                              → memory-freeze | give memory
        --memory-admit obp                                    → memory-admit | give memory
        --memory 64MiB --memory-admit maybe                   → memory-admit | maybe | second-access
        --memory 64MiB --memory-admit fussy → memory-admit | fetch | --tier \
         memory:SIZE,write=back,volatile,admit=fussy:tune=1
        --memory 64MiB --memory-admit obp+sequential → memory-admit | position | --tier memory:SIZE
        --memory 64MiB --memory-admit small-bypass:memory=9   → memory-admit | uppermost tier
        --memory 64MiB --memory-freeze hard → memory-freeze | hard | adaptive and off
        --shed=lots                                           → shed | lots | 50%
        --tier memory:lots                                    → tier 1 | memory:lots
        --tier memory:1MiB --tier memory:1MiB,colour=red → tier 2 | colour | medium=NAME | \
         write=MODE
        --tier memory:1MiB,write=sideways                     → tier 1 | write | sideways
        --tier memory:1MiB,block-sizes=4KiB+3KiB              → tier 1 | block-sizes | 3KiB
        --tier memory:1MiB,write=back,write=back              → tier 1 | write | twice
        --tier memory:1MiB,volatile=yes                       → tier 1 | volatile | yes
        --tier memory:1MiB,shards=few                         → tier 1 | shards | few
        --tier memory:1MiB,dirty-max=10%                      → tier 1 | dirty-max | write = back
        --tier file:new.img                                   → tier 1 | size is missing | new.img
        --tier file:new.img,size=64KiB → tier file:new.img,size=64KiB | too small
        --tier memory:8MiB,shards=2 --threads 3               → threads = 3 | shards
        --tier memory:64KiB                                   → tier memory:64KiB | too small
        --dirty-max 20%                                       → dirty-max | write = back | through
        --admit sideways                                      → admit | sideways | obp
        --admit obp:target=2                                  → admit | target | 2
        --admit obp+                                          → admit
        --admit never --write pass                            → admit | write = pass
        --evict sideways                                      → evict | sideways | s3-fifo
        --evict belady → evict | belady | asked for next | s3-fifo
        --evict sarc:threshold=1                              → evict | threshold | from 2 to 64
        --evict arc --write pass                              → evict | write = pass
        --tier memory:1MiB,evict=lru:depth=2                  → tier 1 | evict | lru | depth
        --calibration noise                                   → calibration | admit = obp
        --admit obp --calibration nowhere.json                → calibration | nowhere.json
        --admit obp --calibration version.json → calibration | version.json | floe calibrate
        --admit obp+small-bypass → admit | small-bypass:memory=BYTES | memory
        --write back --dirty-max 0%                           → dirty-max | 0% | above 0
        --shed=0%                                             → shed | 0%
        --shed=101%                                           → shed | 101%
        --shed 50%                                            → 50%
        --shed --write pass                                   → shed | write = pass
        --service none.json                                   → service | give memory
        --memory 64MiB --service none.json                    → service | none.json | No such file
        --memory 64MiB --service of-none.json → service | of-none.json | no service times for \
         s3-fifo
        --memory 64MiB --service lookup-only.json → service | lookup-only.json | no service times \
         for s3-fifo | lru
        --memory 64MiB --memory-write sideways → memory-write | sideways | through and back
        --memory 64MiB --flush-interval 1s                    → flush-interval | memory-write = back
        --memory 1MiB --memory-write back --shards 8 --block-sizes 4KiB → shards = 8 | 2MiB | \
         fewer --shards
        --block-sizes 3KiB                                    → block-sizes | 3KiB
        --block-sizes 32KiB,,                                 → block-sizes
        --block-sizes 4KiB,2MiB                               → block-sizes | 2MiB
        --block-sizes 64KiB,64KiB                             → block-sizes | 64KiB | twice
        --block-sizes 1MiB --shards 2                         → 1MiB | shards = 2
        --shards 0                                            → shards | 0
        --shards many                                         → --shards | 'many'
        --shards 1000                                         → shards | 1000
        --threads 0                                           → threads | 0 | 64
        --threads many                                        → --threads | 'many'
        --tls maybe                                           → tls
        --tls-certificates .                                  → tls-certificates | tls is off
        --tls-verify-peer                                     → tls-verify-peer | tls is off
        --tls on                                              → tls-certificates is missing
        --tls on --tls-certificates . --tls-verify-peer --listen nvme-tcp://127.0.0.1:0 → listen = \
         nvme-tcp://127.0.0.1:0 | tls-verify-peer | certificate | insecure
        --admin none --admin unix:x                           → admin | none | unix:x
        --admin none --admin-group 0                          → admin-group | none
        --admin none --admin-token-file x                     → admin-token-file | HOST:PORT
        --tls require --tls-certificates folder               → folder/server-cert.pem | TLS
        --log-format xml                                      → --log-format | 'xml' | json
        --max-connections 0                                   → max-connections | 0
        --max-connections many                                → --max-connections | 'many'
        --listen http://127.0.0.1                             → listen | http://127.0.0.1 | nbd://
        --listen nbds://127.0.0.1                             → listen | TLS
        --listen nbd://                                       → listen | no host
        --listen nbd://127.0.0.1:99999                        → listen | 99999
        --listen nbd://127.0.0.1/name                         → name | --volume
        --listen nbd+unix:///                                 → listen | ?socket=PATH
        --listen nbd+unix:///?socket=/no/floe.sock            → /no/floe.sock | No such file
        --listen nbd://0.0.0.0:0                              → 0.0.0.0 | --insecure
        --listen nvme-tcp://                                  → listen | nvme-tcp:// | no host
        --listen nvme-tcp://127.0.0.1:99999                   → listen | 99999 | HOST:PORT
        --listen nvme-tcp://127.0.0.1/name                    → listen | 127.0.0.1/name | HOST:PORT
        --listen nvme-tcp://0.0.0.0:0                         → nvme-tcp://0.0.0.0:0 | --insecure
        --listen nvme-tcp://127.0.0.1:0 --nqn floe            → nqn | floe | nqn.YYYY-MM.
        --listen nvme-tcp://127.0.0.1:0 --nvme-hosts floe     → nvme-hosts | floe | nqn.YYYY-MM.
        --listen nvme-tcp://127.0.0.1:0 --nvme-secrets-file no → nvme-secrets-file | No such file
        --listen nbd://127.0.0.1:0 --nvme-secrets-file odd.img → nvme-secrets-file | nvme-tcp://
        --listen nbd://127.0.0.1:0 --nvme-block-size 4KiB     → nvme-block-size | nvme-tcp://
        --listen nvme-tcp://127.0.0.1:0 --nvme-block-size 8KiB → nvme-block-size | 8KiB | 4KiB
        --listen nbd://127.0.0.1:0 --nqn nqn.2026-11.         → nqn | nqn.2026-11. | nqn.YYYY-MM.
        --listen nbd://127.0.0.1:0 --admin 0.0.0.0:0          → 0.0.0.0:0 | --insecure
        --listen nbd://127.0.0.1:0 --admin nowhere            → admin | nowhere | HOST:PORT
        --listen nbd://127.0.0.1:0 --admin 127.0.0.1:99999    → admin | 127.0.0.1:99999
        ",
    );
    let long = "n".repeat(5000);
    let somewhere = ["--listen", "nbd://127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let line = [&serve[..], &somewhere, &["--volume", &long]].concat();
    refused(Path::new("."), &line, &["cannot offer export", "4096"]);
}

#[test]
fn too_few_descriptors_for_any_client_are_refused() {
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_floe")])
        .args([
            "serve",
            "--backing",
            "memory:4MiB",
            "--cache",
            "memory:1MiB",
            "--admin",
            "127.0.0.1:0",
        ])
        .output()
        .expect("floe runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("floe: 100 open files are too few: ") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_filter_for_the_log_that_makes_no_sense_is_refused() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_floe"))
        .args([
            "serve",
            "--backing",
            "memory:4MiB",
            "--cache",
            "memory:1MiB",
            "--block-sizes",
            "4KiB",
        ])
        .args(["--listen", "nbd://127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .env("FLOE_LOG", "floe=loud")
        .output()
        .expect("floe runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("floe: FLOE_LOG: `floe=loud`: ") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn wrong_configuration_files_are_refused_with_the_line() {
    all_refused(
        &["serve", "--config"],
        "
        missing.toml                     → missing.toml | No such file
        folder                           → folder | directory
        nothing                          → nothing | volume is missing
        volumeless.toml                  → volumeless.toml | volume is missing | [[volume]]
        cacheless.toml                   → cacheless.toml | cache is missing
        unknown.toml                     → unknown.toml | line 2 | `cach` | `cache-size`
        single.toml                      → single.toml | line 1 | `backing` | `volume`
        type.toml                        → type.toml | line 1 | threads: | two
        type-in-list.toml                → type-in-list.toml | line 1 | listen: | 5 | quotation
        unitless.toml                    → unitless.toml | line 2 | flush-interval: | write \"5s\"
        shareless.toml                   → shareless.toml | line 2 | dirty-max: | write \"12.5%\"
        sizeless.toml                    → sizeless.toml | line 1 | cache-size: | \"1048576\"
        type-in-tier.toml                → type-in-tier.toml | line 9 | volatile: | yes
        syntax.toml                      → syntax.toml | line 2
        twice.toml                       → twice.toml | line 7 | duplicate
        value.toml                       → value.toml | line 3 | write | sideways
        unknown-in-volume.toml           → unknown-in-volume.toml | line 7 | `colour` | `read-only`
        attach-value.toml                → attach-value.toml | line 7 | attach | `iscsi` | ublk
        share-alone.toml                 → share-alone.toml | line 7 | share | attach
        binary.toml                      → binary.toml | line 1 | UTF-8
        latin.toml                       → latin.toml | line 2 | UTF-8
        quoted.toml → quoted.toml: line 2: threads: | write the number 4 without quotation marks
        negative.toml    → negative.toml: line 2: threads: | -1 | whole number
        list.toml        → list.toml: line 2: threads: | whole number
        sizes.toml       → sizes.toml: line 2: block-sizes: | write \"4KiB,64KiB\"
        sizes-of-numbers.toml → sizes-of-numbers.toml: line 2: block-sizes: | text in quotation
        one-volume.toml  → one-volume.toml: line 2: volume: | write [[volume]]
        one-tier.toml    → one-tier.toml: line 6: tier: | write [[tier]]
        volume-text.toml → volume-text.toml: line 2: volume: | tables [[volume]]
        flag.toml        → flag.toml: line 2: insecure: | true or false
        again.toml       → again.toml: line 3: threads: | duplicate
        unquoted.toml    → unquoted.toml: line 2: write:
        section.toml     → section.toml: line 2: | `server` | `threads`
        certificates.toml → certificates.toml: line 3: tls-certificates: | /no/tls
        token.toml       → token.toml: line 2: admin-token-file: | /no/t
        socket.toml      → socket.toml: line 2: listen: | the folder /no does not exist
        admin-socket.toml → admin-socket.toml: line 4: admin: | the folder /no does not exist
        cache-folder.toml → cache-folder.toml: line 2: cache: | the folder /no does not exist
        tier-folder.toml → tier-folder.toml: line 9: | cache: | the folder /no does not exist
        no-volume.toml   → no-volume.toml: line 9: backing: | none.img | No such file
        same-name.toml                   → same-name.toml | line 9 | two volumes
        value-in-volume.toml             → value-in-volume.toml | line 9 | backing | disk:5
        tier.toml                        → tier.toml | line 9 | tier 1 | write | sideways
        tier-unknown.toml                → tier-unknown.toml | line 9 | `colour` | `dirty-max`
        good.toml --tier memory:1MiB     → --config | --tier
        shards.toml                      → shards.toml | line 2 | threads = 3 | shards
        interval.toml                    → interval.toml | line 1 | flush-interval | through
        good.toml --write back           → --config | --write
        good.toml --listen nbd://[::1]:0 → --config | --listen
        good.toml --insecure             → --config | --insecure
        nqn.toml                         → nqn.toml | nqn | \"floe\" | nqn.YYYY-MM.
        good.toml --backing memory:4MiB  → --config | --backing
        ",
    );
}

#[test]
fn wrong_traces_are_refused_with_the_place() {
    let table = "
        missing.vscsi                → missing.vscsi | No such file
        folder                       → folder | directory
        nothing                      → nothing | empty
        noise                        → noise | --format
        noise --format tape          → --format | tape | vscsi
        noise --format vscsi         → noise | record 1 | byte 0
        short.vscsi --format vscsi   → short.vscsi | byte
        late.csv                     → late.csv | line 501 | Dream
        cut.csv.gz                   → cut.csv.gz
        ";
    all_refused(&["trace", "info"], table);
    all_refused(&["trace", "info", "--json"], table);
    all_refused(&["simulate", "--blocks", "32KiB", "--size", "1MiB"], table);
}

#[test]
fn wrong_simulations_are_refused() {
    all_refused(
        &["simulate", "good.csv"],
        "
        --size 10% --blocks 3KiB                          → --blocks | 3KiB
        --size 10% --blocks 32KiB,32KiB                   → --blocks | 32KiB | twice
        --size lots --blocks 32KiB                        → --size | lots
        --size 0% --blocks 32KiB                          → --size | 0%
        --size 1MiB --blocks 32KiB --write sideways       → --write | sideways
        --size 1MiB --blocks 32KiB --flush-interval soon  → --flush-interval | soon
        --size 1MiB --blocks 32KiB --shards many          → --shards | many
        --size 1MiB --blocks 32KiB --policy magic         → magic
        --size 1MiB --blocks 32KiB --policy lru,belady    → belady | asked for next
        ",
    );
}

#[test]
fn advice_that_cannot_be_given_is_refused() {
    all_refused(
        &["advise", "--backing", "hdd"],
        "
        missing.csv --cache nvme                    → missing.csv
        keys:1 --cache nvme                         → keys:1
        zipf:keys=9 --cache nvme                    → zipf:keys=9 | block=4KiB
        good.csv --cache nvme --write pass          → --write | pass | floe replay
        good.csv --cache nvme --write often         → --write | often | through
        good.csv --cache nvme --in-flight 0         → --in-flight | 0
        good.csv --cache nvme --warmup 95           → --warmup | 95
        good.csv --cache nvme --limit 0             → --limit | 0
        good.csv --cache nvme --price=-1            → --price | -1
        good.csv --cache nvme --s3-prices put=1     → --s3-prices | hdd | --backing s3
        good.csv --cache nvme --goal fast           → --goal | fast | p99.9 | endurance
        good.csv --cache nvme=4KiB                  → --cache | too small | 256KiB
        ",
    );
}

#[test]
fn a_replay_with_a_tier_in_memory_or_an_impossible_admission_is_refused() {
    all_refused(
        &["replay", "good.csv", "--backing", "memory:4MiB", "--cache", "memory:1MiB"],
        "
        --memory 2MiB        → replay does not take | --memory | floe serve
        --state-dir nowhere  → replay does not take | --state-dir | floe serve
        --insert-us 1        → --insert-us | --time virtual
        --time virtual --insert-us=-1 → --insert-us | -1
        --admit sideways     → admit | sideways | obp
        --admit small-bypass → admit | small-bypass:memory=BYTES | tier above
        ",
    );
}

#[test]
fn impossible_cores_are_refused() {
    all_refused(
        &["coherence", "--requests", "1000"],
        "
        --cache floe,none        → none | quick_cache
        --cores 0                → --cores | 0
        --cores 513              → cores | 512
        --keys 0                 → keys | 0
        --hit-ratio 1.1          → hit ratio | 1.1
        --theta=-1               → Zipf | -1
        --transfer-ns=-1         → transfer | -1
        --shards 0               → shards | 0
        --measure --pause-ns 1   → --measure | --pause-ns
        ",
    );
}

#[test]
fn impossible_models_are_refused() {
    all_refused(
        &["model"],
        "
        lru                                          → 'lru'
        --nonsense                                   → '--nonsense'
        --policy magic                               → magic | prob-lru
        --hit-ratio 1.1                              → the hit ratio 1.1 | 0 to 1
        --hit-ratio=-0.1                             → the hit ratio -0.1 | 0 to 1
        --hit-ratio 90%                              → --hit-ratio | 90%
        --mpl 0                                      → --mpl | 0
        --mpl 1.5                                    → --mpl | 1.5
        --mpl 100001                                 → MPL | 100001 | 100000
        --cores 100001                               → cores is 100001 | 100000
        --cores 100001 --arrival-rate 1              → 100001 | 100000
        --disk-us=-5                                 → disk | -5
        --disk-us soon                               → --disk-us | soon
        --policy prob-lru --q 2                      → q 2 | 0 to 1
        --frozen 1.5                                 → frozen share 1.5 | 0 to 1
        --cores 0                                    → --cores | 0
        --arrival-rate 0                             → arrival rate of 0
        --arrival-rate 1 --mpl 5                     → --arrival-rate | --mpl
        --distribution measured                      → --distribution measured | --service
        --q 0.5                                      → --q | prob-lru
        --distribution pareto                        → --distribution | pareto | \
         hyperexponential:CV2
        --distribution hyperexponential:0.5          → --distribution | 0.5 | at least 1
        --precision 2                                → --precision 2 | 0 to 0.5
        --service missing.json                       → missing.json | No such file
        --service noise                              → noise | UTF-8
        --service nothing                            → nothing | line 1
        --service good.toml                          → good.toml | line 1
        --service version.json                       → version.json | floe_service is 9 | only 1
        --service of-none.json                       → no service times for lru
        --service fly.json                           → fly.json | line 2 | `fly` | `frozen-lookup`
        --service negative.json                      → negative.json | lookup -1
        --service text.json                          → text.json | line 2 | a time in µs
        --service lookup-only.json                   → service times of lru lack `head`
        --service queues.json                        → queues.json | head | growing queue lengths
        --size 10%                                   → --trace
        --trace good.csv --policy magic              → magic | lirs
        --trace good.csv --policy belady             → belady | sequence of keys
        --trace good.csv --size 4KiB                 → --size | entries
        --skip-bad                                   → --skip-bad | --trace
        --trace good.csv --report page.html          → --trace | --report
        --trace good.csv --arrival-rate 1            → --trace | --arrival-rate
        --trace good.csv --frozen 0.5                → --trace | --frozen
        --trace good.csv --hit-ratio 0.5             → --trace | --hit-ratio
        --trace good.csv --mpl 0                     → --mpl | 0
        --trace missing.csv                          → missing.csv | No such file
        --trace nothing                              → nothing | empty
        --trace good.csv --service missing.json      → missing.json | No such file
        ",
    );
}

#[test]
fn wrong_benchmarks_are_refused() {
    all_refused(
        &["bench", "memory"],
        "
        missing.vscsi                                → missing.vscsi | No such file
        nothing                                      → nothing | empty
        tape:keys=5                                  → tape
        good.csv --keys 5                            → --keys | [TRACE]
        good.csv --format tape                       → --format | tape
        --keys 0                                     → --keys | 0
        --keys 5,6                                   → --keys | 5,6
        --theta=-1                                   → theta | -1
        --writes 1.5                                 → --writes | 1.5
        --writes some                                → --writes | some
        --value 7                                    → --value | 7
        --value 1TiB                                 → --value | 64MiB
        --capacity lots                              → --capacity | lots
        --capacity 1MiB                              → --capacity | share of the keys
        --keys 10 --capacity 1%                      → --capacity | less than one
        --capacity 10 --hit-ratio 0.5                → --capacity | --hit-ratio
        --hit-ratio 0                                → --hit-ratio | 0
        --hit-ratio 90%                              → --hit-ratio | 90%
        --hit-ratio 0.5..=1                          → --hit-ratio | step
        --policy magic                               → --policy | magic
        --policy slru:segments=x                     → segments
        --policy belady                              → policy belady | future
        --policy sarc                                → policy sarc | simulations
        --shards 3                                   → 3 shards | power of two
        --shards 0                                   → --shards | 0
        --threads 0                                  → --threads | 0
        --threads two                                → --threads | two
        --threads 100000                             → --threads | 100000
        --mpl 1.5                                    → --mpl | 1.5
        --threads 2 --mpl 1                          → --mpl | 2 threads
        --disk-us=-5                                 → --disk-us | -5
        --disk-us 1e9                                → --disk-us | 10000000
        --disk-times odd                             → --disk-times | odd
        --repetitions 0                              → --repetitions | 0
        --seconds 0                                  → --seconds | 0
        --seconds nan                                → --seconds | NaN
        --warm-up=-1                                 → --warm-up | -1
        --frozen maybe                               → --frozen | maybe
        --frozen 1.5                                 → --frozen | 1.5
        --lifetime never                             → --lifetime | never
        --lifetime 0x                                → --lifetime | 0x
        --vs frozen=2                                → --vs frozen=2 | share from 0 to 1
        --vs lifetime=soon                           → --vs lifetime=soon | 20x
        --admit magic                                → --admit | magic | second-access
        --admit obp:target=2                         → --admit | target
        --admit fussy                                → fussy | fetched
        --admit sequential+duel                      → sequential + duel | position
        --admit duel --hit-ratio 0.5                 → --admit | --hit-ratio
        --vs admit=magic                             → --vs admit=magic | magic
        --vs admit=fussy                             → --vs admit=fussy | fetched
        --hit-ratio 0.5 --vs admit=duel              → --vs admit=duel | --capacity
        --calibrate --admit duel                     → --calibrate | --admit
        --vs lru                                     → --vs lru | policy | shards
        --vs policy=magic                            → --vs policy=magic | magic
        --vs shards=0                                → --vs shards=0 | whole number
        --vs policy=belady                           → --vs policy=belady | future
        --vs capacity=1MiB                           → --vs capacity=1MiB | share of the keys
        --vs hit-ratio=2                             → --vs hit-ratio=2 | share
        --vs threads=100 --mpl 4 --threads 2         → --vs threads=100 | mpl 4
        --service-out new.img                        → --calibrate
        --calibrate --disk-us 5                      → --calibrate | --disk-us
        --calibrate good.csv                         → --calibrate | [TRACE]
        --calibrate --hit-ratio 0.5                  → --calibrate | --hit-ratio
        --calibrate --policy arc                     → arc | floe model | s3-fifo
        --calibrate --policy magic                   → --policy | magic
        --calibrate --threads 1,2                    → --threads | one number
        --calibrate --threads 100000                 → --threads | 100000
        --calibrate --keys 100                       → 500 keys
        --calibrate --value 7                        → --value | 7
        --calibrate --repetitions 0                  → --repetitions | 0
        --calibrate --keys 2000 --service-out /no/new.img → /no/new.img | No such file
        --calibrate --keys 2000 --service-out folder → --service-out folder | directory
        ",
    );
}

#[test]
fn wrong_calibrations_are_refused() {
    all_refused(
        &["calibrate"],
        "
                                                             → <SPEC>
        disk:5                                               → <SPEC> | disk:5
        file:folder                                          → folder | neither a regular file
        file:odd.img                                         → odd.img | 1000 | 512
        memory:64KiB                                         → memory:64KiB | 65536
        memory:64MiB --block 5000                            → --block 5000 | 4096
        memory:64MiB --block 2MiB                            → --block 2097152 | 1MiB
        memory:64MiB --writes 1                              → --writes 1 | below 1
        memory:64MiB --writes 0                              → --writes | above 0
        memory:64MiB --writes many                           → --writes | many
        memory:64MiB --max-loss 100%                         → --max-loss
        memory:64MiB --seconds 0                             → --seconds 0
        memory:64MiB --rounds 0                              → --rounds 0
        memory:64MiB --depth 0                               → --depth | 0
        memory:64MiB --time virtual                          → memory:64MiB | medium=nvme
        memory:64MiB,medium=hdd --time virtual --seconds 0.0001 → 0.0001 | --seconds
        memory:64MiB --backing file:new.img                  → new.img | does not exist
        memory:64MiB --cache file:new.img                    → --cache | new.img
        memory:64MiB --cache volume.img                      → volume.img | no cache
        file:new.img,size=4MiB --scratch 1KiB                → new.img | 1048576
        ",
    );
}

#[test]
fn help_is_there_for_every_command_with_examples() {
    for command in [
        "",
        "serve",
        "attach",
        "detach",
        "status",
        "flush",
        "restore",
        "volume",
        "volume list",
        "volume add",
        "volume remove",
        "volume resize",
        "volume ana",
        "stop",
        "simulate",
        "policies",
        "admissions",
        "bench",
        "bench memory",
        "calibrate",
        "trace",
        "trace info",
        "demo",
        "advise",
    ] {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = floe(&words);
        let text = String::from_utf8(output.stdout).expect("help is UTF-8");
        assert!(output.status.success() && output.stderr.is_empty(), "floe {words:?}");
        assert!(text.contains("Usage: floe"), "floe {words:?}: {text}");
        let has_examples = text.contains("Examples:\n  floe ");
        assert!(
            has_examples || ["bench", "trace", "volume"].contains(&command),
            "floe {words:?}: {text}"
        );
    }
}
