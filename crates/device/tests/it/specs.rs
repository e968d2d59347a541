//! Devices as text.

use crate::common::{SECTOR, thread};
use floe_device::{Device, MediumDevice, MemoryDevice, OpenError, Role, Spec, SpecError};
use proptest::prelude::*;

fn refused(text: &str) -> String {
    text.parse::<Spec>().unwrap_err().to_string()
}

#[test]
fn specs_are_read_as_written() {
    let spec: Spec = "file:/a=b:c d,size=10GiB,medium=nvme".parse().unwrap();
    assert_eq!(spec.paths(), [std::path::Path::new("/a=b:c d")]);
    assert_eq!(spec.size_bytes(), Some(10 << 30));
    assert_eq!(spec.medium().unwrap().name, "nvme");
    let spec: Spec = "memory:64KiB".parse().unwrap();
    assert_eq!(
        (spec.size_bytes(), spec.paths().len(), spec.medium().is_none()),
        (Some(65536), 0, true)
    );
    let spec: Spec = "stripe:/a+b=c+/d:e,medium=hdd,chunk=64KiB".parse().unwrap();
    assert_eq!(spec.paths(), ["/a", "b=c", "/d:e"].map(std::path::PathBuf::from));
    assert_eq!((spec.size_bytes(), spec.medium().unwrap().name), (None, "hdd"));
    assert_eq!("stripe:/a+/b".parse::<Spec>().unwrap().to_string(), "stripe:/a+/b,chunk=256KiB");
    assert_eq!("memory:4096".parse::<Spec>().unwrap().size_bytes(), Some(4096));
}

#[test]
fn an_image_has_a_user_a_configuration_and_a_timeout() {
    let text = "rbd:pool/space/vm@monday,id=floe,conf=/etc/ceph/other.conf,timeout=1m30s";
    let spec: Spec = text.parse().unwrap();
    assert_eq!(spec.to_string(), text);
    assert_eq!((spec.paths().len(), spec.size_bytes()), (0, None));
    assert!(refused("rbd:vm").contains("write rbd:POOL/IMAGE"));
    assert!(refused("rbd:a/b,timeout=0s").contains("\"0s\" in"));
    assert!(refused("rbd:a/b,size=1GiB").contains("id=USER, conf=FILE, timeout=TIME"));
    assert!(refused("rbd:a/b,write-cache=volatile").contains("unknown setting"));
    assert!(refused("rbd:a/b,id=c,id=d").contains("twice"));
}

#[test]
fn a_bucket_has_sizes_an_endpoint_and_a_region() {
    let text = "s3://bucket/team/vm,size=1TiB,object=256KiB,endpoint=http://h:7070,region=eu,\
                timeout=30s";
    let spec: Spec = text.parse().unwrap();
    assert_eq!(spec.to_string(), text);
    assert_eq!(
        (spec.size_bytes(), spec.is_remote(), spec.is_bucket()),
        (Some(1 << 40), true, true)
    );
    assert!(Spec::begins(text) && spec.overlaps(&text.parse().unwrap()));
    let other: Spec = "s3://bucket/team/vm,endpoint=http://other".parse().unwrap();
    assert!(!spec.overlaps(&other));
    assert!(refused("s3:bucket/vm").contains("write s3://BUCKET/PREFIX"));
    assert!(refused("s3://bucket").contains("write s3://BUCKET/PREFIX"));
    assert!(refused("s3://b/v,object=4KiB").contains("objects of 4096 bytes in"));
    assert!(refused("s3://b/v,object=100000").contains("positive multiple of 4096"));
    assert!(refused("s3://b/v,endpoint=host:80").contains("write endpoint=https://HOST:PORT"));
    assert!(refused("s3://b/v,id=x").contains("there are size=SIZE, object=SIZE"));
    let spec: Spec = "s3://bucket/vm".parse().unwrap();
    let cache = spec.prepare(Role::Cache { size: 1 << 20 }).unwrap_err().to_string();
    assert!(cache.starts_with("s3://bucket/vm cannot be a cache"), "{cache}");
}

#[test]
fn an_export_has_a_uri_and_a_timeout() {
    for text in [
        "nbd://10.0.0.1/vm1",
        "nbd://[fe80::1]:10810/a%2Cb,timeout=1m30s",
        "nbd+unix:///vm1?socket=/run/floe.sock,timeout=5s,medium=hdd",
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!((spec.paths().len(), spec.size_bytes(), spec.is_remote()), (0, None, true));
        assert!(Spec::begins(text));
    }
    assert!(refused("nbd://h/a,size=1GiB").contains("there are timeout=TIME"));
    assert!(refused("nbd://h/a,timeout=x").contains("is not a time"));
    assert!(refused("nbds://h/a").contains("does not speak TLS; put a tunnel before it"));
    assert!(refused("nbd:///a").contains("it names no host; write nbd://HOST:PORT/EXPORT"));
    assert!(refused("nbd+unix:///a").contains("it lacks ?socket=PATH"));
}

#[test]
fn a_stripe_has_paths_images_or_exports() {
    for text in [
        "stripe:rbd:a/b+rbd:a/c@d,chunk=64KiB,size=1GiB,id=u,conf=/c,timeout=5s,medium=hdd",
        "stripe:nbd://h/a+nbd+unix:///b?socket=/s+nbd://h/c,chunk=256KiB,timeout=5s",
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!((spec.paths().len(), spec.is_remote()), (0, true));
    }
    assert!(refused("stripe:/a+rbd:a/b").contains("are of several kinds"));
    assert!(refused("stripe:nbd://h/a+rbd:a/b").contains("are of several kinds"));
    assert!(refused("stripe:rbd:a/b+rbd:a/b").contains("twice"));
    assert!(refused("stripe:rbd:a/b+rbd:a").contains("names no image"));
    assert!(refused("stripe:rbd:a/b+rbd:a/c,write-cache=volatile").contains("id=USER"));
    assert!(refused("stripe:/a+/b,timeout=5s").contains("there are chunk=SIZE, size=SIZE, write"));
}

#[test]
fn devices_overlap_that_are_in_one_place() {
    let overlap = |one: &str, other: &str| {
        one.parse::<Spec>().unwrap().overlaps(&other.parse::<Spec>().unwrap())
    };
    assert!(overlap("stripe:/a+/b", "/b,size=4KiB"));
    assert!(overlap("rbd:a/b", "stripe:rbd:a/c+rbd:a/b"));
    assert!(overlap("nbd://h/a", "nbd://h:10809/a,timeout=5s"));
    assert!(!overlap("rbd:a/b", "rbd:a/b,conf=/etc/other") && !overlap("rbd:a/b", "rbd:a/b@c"));
    assert!(!overlap("memory:4096", "memory:4096") && !overlap("nbd://h/a", "nbd://i/a"));
}

#[test]
fn one_file_by_two_names_is_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("disk"), [0; 8192]).unwrap();
    std::fs::hard_link(path("disk"), path("hard")).unwrap();
    std::os::unix::fs::symlink("disk", path("soft")).unwrap();
    let spec = |text: &str| -> Spec {
        text.replace("DIR", folder.path().to_str().unwrap()).parse().unwrap()
    };
    let volume = Role::Backing { read_only: false };
    for name in ["DIR/hard", "DIR/soft", "DIR/./disk", "stripe:DIR/none+DIR/soft"] {
        assert!(spec("DIR/disk").overlaps(&spec(name)), "{name}");
    }
    assert!(!spec("DIR/disk").overlaps(&spec("DIR/other")));
    assert!(spec("DIR/hard").is_on(&path("soft")) && !spec("DIR/hard").is_on(&path("none")));
    let refused = "mirror:DIR/hard+DIR/soft".replace("DIR", folder.path().to_str().unwrap());
    assert!(refused.parse::<Spec>().unwrap_err().to_string().contains("twice"));
    let held = spec("DIR/disk").prepare(volume).unwrap();
    let again = |name: &str| spec(name).prepare(volume).unwrap_err().to_string();
    let disk = path("disk").display().to_string();
    assert!(again("DIR/disk").ends_with("disk is in use by this process already"));
    let other = format!("hard is the same as {disk}, which this process uses already");
    assert!(again("DIR/hard").ends_with(&other), "{}", again("DIR/hard"));
    drop(held);
    spec("DIR/soft").prepare(volume).unwrap();
}

#[test]
fn a_path_needs_no_kind() {
    for path in ["/dev/disk/by-path/pci-0000:00:1f.2-ata-1", "./a=b", "../stripe:a", "/"] {
        for settings in ["", ",size=1MiB,medium=nvme"] {
            let alone: Spec = format!("{path}{settings}").parse().unwrap();
            assert_eq!(alone, format!("file:{path}{settings}").parse().unwrap());
            assert_eq!(alone.paths(), [std::path::Path::new(path)]);
            assert!(Spec::begins(path));
        }
    }
    assert!(Spec::begins("memory:1MiB") && !Spec::begins("a=memory:1MiB") && !Spec::begins("a"));
}

#[test]
fn mistakes_are_named_with_what_there_is() {
    assert_eq!(
        refused("disk:/a"),
        "\"disk:/a\" is not a device; write file:PATH, memory:SIZE, stripe:PATH+PATH, \
         mirror:HALF+HALF, rbd:POOL/IMAGE, s3://BUCKET/PREFIX, nbd://HOST:PORT/EXPORT, or a path \
         that begins with / or ./"
    );
    for text in ["a", "a/b", ".a", "..", "~/a", ""] {
        assert!(refused(text).contains("begins with / or ./"), "{text}");
    }
    assert!(refused("/a,sice=4096").contains("write-cache=volatile"));
    assert!(refused("file:").contains("no path"));
    assert!(refused("memory:").contains("no size"));
    assert!(refused("memory:,medium=hdd").contains("no size"));
    assert_eq!(
        refused("file:/a,sice=4096"),
        "unknown setting \"sice\" in \"file:/a,sice=4096\"; there are size=SIZE, \
         write-cache=volatile, medium=NAME, interference=off, iops=N and bandwidth=SIZE"
    );
    assert!(
        refused("memory:4096,size=4096")
            .ends_with("there are medium=NAME, interference=off, iops=N and bandwidth=SIZE")
    );
    assert!(refused("file:/a,").contains(r#"unknown setting """#));
    assert!(
        refused("memory:4096,medium=tape")
            .contains("dram, pmem, optane, nvme, sata-ssd, hdd, cloud")
    );
    assert!(refused("memory:5000").contains("5000"));
    assert!(refused("memory:5000").contains("not a positive multiple of 4096"));
    assert!(refused("file:/a,size=700").contains("not a positive multiple of 512"));
    assert!(refused("file:/a,size=0").contains("not a positive multiple"));
    assert!(refused("file:/a,size=lots").contains(r#""lots""#));
    assert!(refused("file:/a,size=").contains("is not a size"));
    assert!(refused("file:/a,size=-1").contains("is not a size"));
    assert!(refused("file:/a,size=512,size=512").contains("twice"));
    assert!(refused("file:/a,size=99999999999TiB").contains("multiple"));
    assert_eq!(
        refused("stripe:/a"),
        r#""stripe:/a" names fewer than two paths; write stripe:PATH+PATH"#
    );
    for text in ["stripe:", "stripe:/a+", "stripe:+/a", "stripe:,size=1MiB"] {
        assert!(refused(text).contains("fewer than two paths"), "{text}");
    }
    assert_eq!(
        refused("stripe:/a+/b+/a"),
        r#""stripe:/a+/b+/a" names path "/a" twice; name each path once"#
    );
    assert!(refused("stripe:/a+/b,chunk=512").contains("not a positive multiple of 4096"));
    assert!(refused("stripe:/a+/b,size=512").contains("not a positive multiple of 4096"));
    assert!(refused("stripe:/a+/b,chunk=0").contains("not a positive multiple"));
    assert!(refused("stripe:/a+/b,chunk=4096,chunk=4096").contains("twice"));
    assert!(refused("stripe:/a+/b,cunk=4096").ends_with(
        "there are chunk=SIZE, size=SIZE, write-cache=volatile, medium=NAME, interference=off, \
         iops=N and bandwidth=SIZE"
    ));
    assert_eq!(
        refused("file:/a,write-cache=no"),
        r#"unknown write-cache "no" in "file:/a,write-cache=no"; the only one is volatile"#
    );
    for text in ["memory:4096,interference=off", "memory:4096,medium=pmem,interference=on"] {
        assert!(refused(text).ends_with("write medium=NAME,interference=off"), "{}", refused(text));
    }
    for text in ["memory:4096,iops=100", "memory:4096,bandwidth=1GiB"] {
        assert!(refused(text).ends_with("no effect without medium=NAME"), "{}", refused(text));
    }
    for wrong in ["", "0", "-1", "1k"] {
        let text = format!("memory:4096,medium=cloud,iops={wrong}");
        assert!(refused(&text).ends_with("not a number of operations a second"), "{text}");
    }
    assert!(refused("memory:4096,medium=cloud,bandwidth=0").contains("not a positive multiple"));
    assert!(refused("stripe:/a+/b,write-cache").contains(r#"unknown write-cache """#));
    assert!(refused("file:/a,write-cache=volatile,write-cache=volatile").contains("twice"));
    assert!(
        refused("memory:4096,write-cache=volatile").contains(r#"unknown setting "write-cache""#)
    );
    assert!(refused("file:/a,chunk=4096").contains("unknown setting"));
}

proptest! {
    #[test]
    fn what_is_printed_reads_back_as_the_same(
        path in "[a-zA-Z/=:. ]{1,20}", second in proptest::option::of("[0-9]{1,5}"),
        chunk in proptest::option::of(1u64..999), size in proptest::option::of(1u64..1 << 40),
        medium in proptest::option::of(0usize..7), undisturbed: bool, memory: bool, volatile: bool,
        iops in proptest::option::of(1u64..1 << 40),
        bandwidth in proptest::option::of(1u64..1 << 50),
    ) {
        let file = match &second {
            Some(second) => format!("stripe:{path}+{second}"),
            None => format!("file:{path}"),
        };
        let mut text = match (memory, size) {
            (true, size) => format!("memory:{}", size.unwrap_or(7) * 4096),
            (false, Some(size)) => format!("{file},size={}", size * 4096),
            (false, None) => file,
        };
        if let Some(chunk) = chunk && !memory && second.is_some() {
            text += &format!(",chunk={}", chunk * 4096);
        }
        if volatile && !memory {
            text += ",write-cache=volatile";
        }
        if let Some(medium) = medium {
            text += &format!(",medium={}", floe_device::Medium::all().nth(medium).unwrap().name);
            text += if undisturbed { ",interference=off" } else { "" };
            text += &iops.map_or(String::new(), |iops| format!(",iops={iops}"));
            text += &bandwidth.map_or(String::new(), |bytes| format!(",bandwidth={bytes}"));
        }
        let spec: Spec = text.parse().unwrap();
        let quiet = spec.medium().is_none_or(|medium| medium.interference.is_empty());
        prop_assert!(!undisturbed || quiet);
        prop_assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
    }

    #[test]
    fn no_text_panics(text in "(file:|memory:|stripe:|[.]?/)[a-z0-9=,.:+-]{0,30}") {
        let _: Result<Spec, SpecError> = text.parse();
    }
}

#[test]
fn a_backing_file_must_exist_unless_its_size_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk").display().to_string();
    let (ring, pool) = thread();
    let open = |text: String| {
        text.parse::<Spec>()
            .unwrap()
            .open(&ring, &pool, Role::Backing { read_only: false })
            .map(|device| device.size_bytes())
            .map_err(|error| error.to_string())
    };
    assert!(open(format!("file:{path}")).unwrap_err().contains(&path));
    assert_eq!(open(format!("file:{path},size=1MiB,medium=cloud")), Ok(1 << 20));
    assert_eq!(open(format!("file:{path}")), Ok(1 << 20));
    let error = open(format!("file:{path},size=2MiB")).unwrap_err();
    assert!(error.contains("1048576") && error.contains("2097152"), "{error}");
}

#[test]
fn a_cache_is_created_with_the_size_of_its_role() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache").display().to_string();
    let (ring, pool) = thread();
    let open = |text: &str, size| {
        text.parse::<Spec>()
            .unwrap()
            .open(&ring, &pool, Role::Cache { size })
            .map(|device| device.size_bytes())
            .map_err(|error| error.to_string())
    };
    let file = format!("file:{path}");
    assert_eq!(open(&file, 65536), Ok(65536));
    assert_eq!(open(&file, 65536), Ok(65536));
    assert!(open(&file, 4096).unwrap_err().contains("65536"));
    assert!(open(&format!("{file},size=4096"), 65536).is_err());
    assert_eq!(open("memory:1MiB", 1 << 20), Ok(1 << 20));
    assert!(open("memory:1MiB", 4096).unwrap_err().contains("1048576"));
}

#[test]
fn an_opened_spec_reads_and_writes() {
    let (ring, pool) = thread();
    let spec: Spec = "memory:1MiB,medium=pmem".parse().unwrap();
    let mut device = spec.open(&ring, &pool, Role::Backing { read_only: false }).unwrap();
    crate::common::write(&ring, &pool, &mut device, 4096, &[1; SECTOR]).unwrap();
    assert_eq!(crate::common::read(&ring, &pool, &mut device, 4096, SECTOR).unwrap(), [1; SECTOR]);
    let _: MediumDevice<MemoryDevice> =
        MediumDevice::new(MemoryDevice::new(4096), spec.medium().unwrap().clone(), 0);
}

#[test]
fn all_handles_of_a_source_are_one_device() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{},size=1MiB", directory.path().join("disk").display());
    let parts: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| directory.path().join(name).display().to_string())
        .collect();
    let stripe = format!("stripe:{},chunk=4096,medium=pmem", parts.join("+"));
    let [volatile, volatile_stripe] =
        [&file, &stripe].map(|text| format!("{text},write-cache=volatile"));
    for text in
        [&file, &stripe, "memory:1MiB", "memory:1MiB,medium=pmem", &volatile, &volatile_stripe]
    {
        let source = text.parse::<Spec>().unwrap().prepare(Role::Cache { size: 1 << 20 }).unwrap();
        assert_eq!(source.size_bytes(), 1 << 20);
        let threads: Vec<_> = (0..4u64)
            .map(|number| {
                let source = source.clone();
                std::thread::spawn(move || {
                    let (ring, pool) = thread();
                    let mut device = source.open(&ring, &pool).unwrap();
                    let bytes = [number as u8 + 1; SECTOR];
                    crate::common::write(&ring, &pool, &mut device, number * 4096, &bytes).unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (ring, pool) = thread();
        let mut device = source.open(&ring, &pool).unwrap();
        for number in 0..4u64 {
            let bytes =
                crate::common::read(&ring, &pool, &mut device, number * 4096, SECTOR).unwrap();
            assert_eq!(bytes, [number as u8 + 1; SECTOR], "{text}");
        }
    }
}

#[test]
fn a_file_stays_locked_as_long_as_a_source_or_a_handle_of_it_lives() {
    let directory = tempfile::tempdir().unwrap();
    let spec: Spec =
        format!("file:{},size=64KiB", directory.path().join("disk").display()).parse().unwrap();
    let role = Role::Backing { read_only: false };
    let (ring, pool) = thread();
    let source = spec.prepare(role).unwrap();
    let handle = source.open(&ring, &pool).unwrap();
    let in_use = || matches!(spec.prepare(role), Err(OpenError::InUse { .. }));
    assert!(in_use());
    drop(source);
    assert!(in_use());
    drop(handle);
    assert!(!in_use());
}

#[test]
fn a_stripe_is_as_large_as_its_smallest_member_allows() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let make =
        |name: &str, bytes| std::fs::File::create(path(name)).unwrap().set_len(bytes).unwrap();
    let spec = |settings: &str| -> Spec {
        format!("stripe:{}+{},chunk=64KiB{settings}", path("a").display(), path("b").display())
            .parse()
            .unwrap()
    };
    let volume = Role::Backing { read_only: false };
    let bytes = |spec: &Spec, role| spec.prepare(role).map(|source| source.size_bytes());
    let refused = |spec: &Spec, role| bytes(spec, role).unwrap_err().to_string();

    assert_eq!(spec("").size_found(), None);
    assert!(refused(&spec(""), volume).contains(path("a").to_str().unwrap()));
    assert_eq!(bytes(&spec(""), Role::Cache { size: 200 << 10 }).unwrap(), 200 << 10);
    assert_eq!(
        std::fs::metadata(path("b")).unwrap().len(),
        128 << 10,
        "half of it, in whole chunks"
    );
    assert_eq!(bytes(&spec(""), volume).unwrap(), 256 << 10);
    assert_eq!(spec("").size_found(), Some(256 << 10));
    assert_eq!(spec(",size=200KiB").size_found(), Some(200 << 10));

    make("a", 1 << 20);
    make("b", (192 << 10) + 512);
    assert_eq!(bytes(&spec(""), volume).unwrap(), 384 << 10);
    assert_eq!(bytes(&spec(",size=380KiB"), volume).unwrap(), 380 << 10);
    let error = refused(&spec(",size=388KiB"), volume);
    assert!(
        error.contains("393216") && error.contains("397312") && error.contains("65536"),
        "{error}"
    );
    assert!(refused(&spec(",size=380KiB"), Role::Cache { size: 256 << 10 }).contains("389120"));
    assert!(refused(&spec(""), Role::Cache { size: 5000 }).contains("5000"));
    make("b", 4096);
    assert!(refused(&spec(""), volume).contains("room for 0 bytes"));
}

#[test]
fn a_volatile_cache_uses_the_start_of_a_longer_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("a"), vec![1; 256 << 10]).unwrap();
    for text in [format!("file:{}", path("a")), format!("file:{},size=64KiB", path("a"))] {
        let spec: Spec = text.parse().unwrap();
        let refused = spec.prepare(Role::Cache { size: 64 << 10 }).unwrap_err().to_string();
        assert!(refused.contains("has 262144 bytes, not the 65536"), "{refused}");
        let source = spec.prepare(Role::VolatileCache { size: 64 << 10 }).unwrap();
        assert_eq!(source.size_bytes(), 256 << 10);
    }
    let spec: Spec = format!("file:{}", path("a")).parse().unwrap();
    let refused = spec.prepare(Role::VolatileCache { size: 512 << 10 }).unwrap_err().to_string();
    assert!(refused.contains("has 262144 bytes, not the 524288"), "{refused}");
    assert_eq!(std::fs::metadata(path("a")).unwrap().len(), 256 << 10);
    let new: Spec = format!("file:{}", path("b")).parse().unwrap();
    new.prepare(Role::VolatileCache { size: 64 << 10 }).unwrap();
    assert_eq!(std::fs::metadata(path("b")).unwrap().len(), 64 << 10, "it is made as long");

    let text = format!("mirror:{}+{},witness={}", path("c"), path("d"), path("state"));
    let mirror: Spec = text.parse().unwrap();
    mirror.prepare(Role::Cache { size: 256 << 10 }).unwrap();
    assert!(mirror.prepare(Role::Cache { size: 64 << 10 }).is_err());
    let source = mirror.prepare(Role::VolatileCache { size: 64 << 10 }).unwrap();
    assert_eq!(source.size_bytes(), 256 << 10);
}
