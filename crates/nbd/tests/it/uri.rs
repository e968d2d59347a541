//! NBD URIs: the examples of doc/uri.md, round trips, and what is refused.

use std::path::{Path, PathBuf};

use floe_nbd::uri::{Address, DEFAULT_PORT, Problem, Uri};

fn tcp(host: &str, port: u16, export: &str) -> Uri {
    Uri { address: Address::Tcp { host: host.into(), port }, export: export.into(), tls: false }
}

fn unix(path: impl Into<PathBuf>, export: &str) -> Uri {
    Uri { address: Address::Unix(path.into()), export: export.into(), tls: false }
}

fn problem(text: &str) -> Problem {
    text.parse::<Uri>().unwrap_err().problem
}

#[test]
fn the_examples_of_the_standard_are_understood() {
    for (text, uri) in [
        ("nbd://example.com:10809/export", tcp("example.com", DEFAULT_PORT, "export")),
        ("nbd://example.com/disk", tcp("example.com", DEFAULT_PORT, "disk")),
        ("nbd+unix:///disk?socket=sock", unix("sock", "disk")),
        ("nbd+unix:///export?socket=nbd.sock", unix("nbd.sock", "export")),
        ("nbd://example.com/", tcp("example.com", DEFAULT_PORT, "")),
        ("nbd://example.com", tcp("example.com", DEFAULT_PORT, "")),
        ("nbd://example.com//disk", tcp("example.com", DEFAULT_PORT, "/disk")),
        ("nbd://example.com/hello%20world", tcp("example.com", DEFAULT_PORT, "hello world")),
        ("nbd+unix:///?socket=%00/abstract", unix("\0/abstract", "")),
        ("NBD://[::1]:2000/a/b", tcp("::1", 2000, "a/b")),
        ("nbd://[2001:db8::7]", tcp("2001:db8::7", DEFAULT_PORT, "")),
        ("nbd://10.0.0.1:1/%C3%A4", tcp("10.0.0.1", 1, "ä")),
        ("nbd+unix://?socket=/run/a%20b.sock", unix("/run/a b.sock", "")),
    ] {
        assert_eq!(text.parse::<Uri>(), Ok(uri.clone()), "{text}");
        assert_eq!(uri.to_string().parse::<Uri>(), Ok(uri), "{text} printed and parsed again");
    }
}

#[test]
fn what_is_printed_is_plain() {
    assert_eq!(tcp("localhost", DEFAULT_PORT, "").to_string(), "nbd://localhost/");
    assert_eq!(tcp("::1", 7, "a b").to_string(), "nbd://[::1]:7/a%20b");
    assert_eq!(unix("/run/x?y", "e&f").to_string(), "nbd+unix:///e%26f?socket=/run/x%3Fy");
    assert_eq!(unix("\0name", "").address.abstract_name(), Some(&b"name"[..]));
    assert_eq!(unix("name", "").address.abstract_name(), None);
}

#[test]
fn any_name_and_path_survives_a_round_trip() {
    for code in (1..0x3000).chain(0x1_f600..0x1_f650).filter_map(char::from_u32) {
        for text in [format!("{code}"), format!("%{code}41"), format!("/{code}/{code}")] {
            for uri in [tcp("h", 5, &text), unix(Path::new(&text), &text)] {
                assert_eq!(uri.to_string().parse::<Uri>(), Ok(uri));
            }
        }
    }
}

#[test]
fn a_scheme_with_an_s_means_tls() {
    for (text, uri) in [
        ("nbds://h/disk", tcp("h", DEFAULT_PORT, "disk")),
        ("NBDS+unix:///disk?socket=s", unix("s", "disk")),
    ] {
        let uri = Uri { tls: true, ..uri };
        assert_eq!(text.parse::<Uri>(), Ok(uri.clone()));
        assert_eq!(uri.to_string().parse::<Uri>(), Ok(uri));
    }
    assert_eq!(problem("nbd://h/?tls-type=anon"), Problem::TlsParameter("tls-type".into()));
}

#[test]
fn what_is_wrong_is_said() {
    for text in ["", "disk", "http://h/", "nbd:h", "nbd+vsock:///"] {
        assert_eq!(problem(text), Problem::Scheme);
    }
    assert_eq!(problem("nbd:///disk"), Problem::NoHost);
    assert_eq!(problem("nbd://:10809/"), Problem::NoHost);
    assert_eq!(problem("nbd://[::1/"), Problem::Host("[::1".into()));
    assert_eq!(problem("nbd://[host]/"), Problem::Host("[host]".into()));
    assert_eq!(problem("nbd://[::1]x/"), Problem::Host("[::1]x".into()));
    assert_eq!(problem("nbd://a b/"), Problem::Host("a b".into()));
    for port in ["65536", "x", "+1", "1:2"] {
        assert_eq!(problem(&format!("nbd://h:{port}/")), Problem::Port(port.into()));
    }
    assert_eq!(problem("nbd://me@h/"), Problem::User);
    assert_eq!(problem("nbd+unix://h/?socket=s"), Problem::HostWithSocket);
    assert_eq!(problem("nbd+unix:///disk"), Problem::NoSocket);
    assert_eq!(problem("nbd+unix:///disk?socket="), Problem::NoSocket);
    assert_eq!(problem("nbd://h/?socket=s"), Problem::Parameter("socket".into()));
    assert_eq!(problem("nbd+unix:///?socket=s&socket=t"), Problem::Parameter("socket".into()));
    assert_eq!(problem("nbd://h/?colour=red"), Problem::Parameter("colour".into()));
    assert_eq!(problem("nbd://h/a#b"), Problem::Fragment);
    for name in ["%", "%4", "%zz", "%é"] {
        assert_eq!(problem(&format!("nbd://h/{name}")), Problem::Encoding(name.into()));
    }
    assert_eq!(problem("nbd://h/%00"), Problem::Export);
    assert_eq!(problem("nbd://h/%ff"), Problem::Export);
    assert_eq!(problem(&format!("nbd://h/{}", "x".repeat(4097))), Problem::Export);
}
