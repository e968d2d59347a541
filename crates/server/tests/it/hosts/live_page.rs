//! The live page in a browser. `FLOE_SCREENSHOTS` names a folder that gets images of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use floe_block::{MemoryWrite, WriteMode};
use floe_server::admin::{AdminAddress, PageKey, Token};
use floe_testkit::{PATIENCE, is_installed, patiently};
use serde_json::{Value, json};

use super::browser::{Browser, PROGRAM};
use crate::rig::{Rig, Setup, VOLUME};

/// A name that would run if it were taken for markup.
const NAME: &str = "<img src=x onerror=alert(1)>";

/// Gives the page an hour of points, as a busy server would have made: waves, with a pause.
const AN_HOUR: &str = "{
    const now = latest.points.find(point => point.read.p50_us > 0) ?? latest.points[0];
    const at = Date.now() / 1000;
    const wave = (step, more) => 1.2 + more + Math.sin(step / 40 + more) + Math.sin(step * 7.3) / 9;
    const flow = (it, by, rate) => ({ rate, bytes: rate * 16384, mean_us: 210 * by,
      p50_us: 90 * by, p99_us: 2400 * by, p999_us: 31000 * by });
    latest.points = Array.from({ length: 715 }, (_, step) => ({ ...now,
      at: at - 5 * (715 - step), seconds: 5, memory_hit_ratio: 0.3 + wave(step, 0) / 9,
      read: flow(now.read, wave(step, 0), 4000 * wave(step, 0)),
      write: flow(now.write, wave(step, 2), 900 * wave(step, 1)),
      tiers: [{ read_hit_ratio: 0.6 + wave(step, 1) / 12, write_hit_ratio: 0.5 + wave(step, 3) / 14,
        dirty_bytes: 5e6 * wave(step, 2), read_bytes: 3e7 * wave(step, 0), written_bytes: 2e7 }],
      backing: { read_bytes: 1e7 * wave(step, 3), written_bytes: 5e6 * wave(step, 2) },
      by: [{ p50_us: 9, p99_us: 40 * wave(step, 1) }, { p50_us: 90, p99_us: 900 * wave(step, 2) },
        { p50_us: 900 * wave(step, 0), p99_us: 21000 * wave(step, 3) }],
      volumes: now.volumes.map((it, more) => ({ ...it, read: flow(now.read, wave(step, more), 1),
        write: flow(now.write, 2 * wave(step, more), 1), reads: 2000 * wave(step, more), writes: 90,
        read_bytes: 9e6 * wave(step, more), write_bytes: 4e6 })),
    })).filter((_, step) => step < 400 || step > 440);
    show();
}";

/// A server with something to show, whose admin interface has this address.
fn serve(admin: &str) -> Rig {
    let mut setup = Setup::new(WriteMode::Back).memory(Some(MemoryWrite::Through)).volume(
        NAME,
        crate::rig::Wrapped::source(floe_device::MemoryDevice::new(1 << 20), |memory| {
            Box::new(memory)
        }),
    );
    *setup.config.admin.listen.last_mut().unwrap() = AdminAddress::Tcp(admin.to_owned());
    setup.config.limits.sample_interval = Duration::from_millis(100);
    setup.start().unwrap()
}

fn load(rig: &Rig) {
    let mut client = rig.client();
    let mut data = vec![7; 4096];
    for at in 0..300u64 {
        client.read(at * at % 97 * 16384, &mut data).unwrap();
        client.write(at * 7 % 31 * 16384, &data, false).unwrap();
    }
}

/// A stream of events, as a program reads it.
fn events(rig: &Rig) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(&rig.admin_tcp).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    BufReader::new(stream)
}

/// The next line of a stream that begins so; its rest.
fn line(stream: &mut BufReader<TcpStream>, beginning: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ends before {beginning}");
        if let Some(rest) = line.strip_prefix(beginning) {
            return rest.trim_end().to_owned();
        }
    }
}

#[test]
fn events_tell_of_hits_by_volume() {
    let rig = serve("127.0.0.1:0");
    load(&rig);
    let mut stream = events(&rig);
    assert_eq!(line(&mut stream, "HTTP/1.1 "), "200 OK");
    assert_eq!(line(&mut stream, "event: "), "history");
    // Reads of the first volume in an interval, and those that hit.
    let mut interval = || {
        while line(&mut stream, "event: ") != "update" {}
        let update: Value = serde_json::from_str(&line(&mut stream, "data: ")).unwrap();
        let (point, volume) = (&update["point"], &update["point"]["volumes"][0]);
        assert_eq!(volume["name"], "floe");
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let asked = number(&volume["reads"]) * number(&point["seconds"]);
        (asked, asked * number(&volume["read_hit_ratio"]))
    };
    while interval().0 > 0.0 {} // the load before
    let mut client = rig.client();
    let mut data = vec![0; 4096];
    (0..20).for_each(|_| client.read(0, &mut data).unwrap());
    client.read((VOLUME - 4096) as u64, &mut data).unwrap(); // that nobody has read before
    let (mut reads, mut hits) = (0.0f64, 0.0f64);
    for _ in 0..100 {
        let (asked, hit) = interval();
        reads += asked;
        hits += hit;
        if reads > 20.5 {
            break;
        }
    }
    assert!((hits - 20.0).abs() < 0.5, "{hits} of {reads}");
    drop(stream);
    rig.end();
}

#[test]
fn few_clients_may_watch_and_none_keeps_the_server_from_its_end() {
    let rig = serve("127.0.0.1:0");
    let mut watching: Vec<_> = (0..8).map(|_| events(&rig)).collect();
    for stream in &mut watching {
        assert_eq!(line(stream, "HTTP/1.1 "), "200 OK");
    }
    assert_eq!(line(&mut events(&rig), "HTTP/1.1 "), "503 Service Unavailable");
    // One that leaves makes room for another.
    watching.pop();
    patiently(|| (line(&mut events(&rig), "HTTP/1.1 ") == "200 OK").then_some(()));
    assert_eq!(rig.status().volumes.len(), 2);
    rig.end();
    let mut rest = String::new();
    watching[0].read_to_string(&mut rest).unwrap();
}

/// Clicks a button of the page and confirms; the result that is shown.
fn confirm(browser: &mut Browser, button: &str) -> String {
    browser.value("document.getElementById('result').className = ''");
    browser.value(&format!("document.querySelector('[aria-label=\"{button}\"]').click()"));
    browser.wait_for("document.getElementById('confirm').open");
    // The dialog has the focus, on what changes nothing.
    assert_eq!(browser.value("document.activeElement.id"), "confirm-no");
    browser.value("document.getElementById('confirm-yes').click()");
    browser.wait_for("/good|bad/.test(document.getElementById('result').className)");
    browser.value("document.getElementById('result').textContent").as_str().unwrap().to_owned()
}

#[test]
fn with_admin_write_the_page_changes_the_server_after_a_confirmation() {
    if !is_installed(&[PROGRAM]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let mut setup = Setup::new(WriteMode::Back);
    setup.config.limits.sample_interval = Duration::from_millis(100);
    setup.config.admin.token = Some(Token::read(&file).unwrap());
    setup.config.admin.page = Some(PageKey::draw().unwrap());
    setup.config.admin.own_folders = vec![folder.path().to_owned()];
    let rig = setup.start().unwrap();
    rig.client().write(0, &[7; 4096], false).unwrap();
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", rig.admin_tcp));
    browser.wait_for("document.querySelectorAll('#tier-actions button').length === 1");
    for width in [360, 1280] {
        browser.show_as(width, "light");
        assert_eq!(browser.overflowing(), json!([]), "at {width}");
        assert!(browser.walk_by_tab() >= 18, "at {width}");
        assert_eq!(browser.nameless(), [""; 0]);
    }
    let dirty = |rig: &Rig| rig.status().cache.dirty_bytes;
    // Without the token the server refuses, whatever the page sends.
    assert!(confirm(&mut browser, "Flush all volumes").contains("admin token"));
    assert_eq!(dirty(&rig), 4096);
    browser.value("document.getElementById('token').value = '0123456789abcdef'");
    // A question that is answered by no changes nothing, nor does one that Escape ends.
    for end in ["click", "Escape"] {
        browser.value("document.querySelector('[aria-label=\"Flush all volumes\"]').click()");
        browser.wait_for("document.getElementById('confirm').open");
        match end {
            "click" => drop(browser.value("document.getElementById('confirm-no').click()")),
            key => browser.press(key),
        }
        browser.wait_for("!document.getElementById('confirm').open");
        assert_eq!(dirty(&rig), 4096);
    }
    assert_eq!(confirm(&mut browser, "Flush all volumes"), "All volumes are flushed.");
    assert_eq!(dirty(&rig), 0);
    let volume = folder.path().join("new.img");
    std::fs::write(&volume, vec![0; 1 << 20]).unwrap();
    browser.value(&format!(
        "document.getElementById('new-volume').value = 'new'; \
         document.getElementById('new-backing').value = 'file:{}'",
        volume.display()
    ));
    assert_eq!(confirm(&mut browser, "Add volume"), "Volume new is added.");
    assert_eq!(rig.status().volumes.len(), 2);
    browser.wait_for("document.querySelector('[aria-label=\"Remove volume new\"]') !== null");
    assert_eq!(confirm(&mut browser, "Remove volume new"), "Volume new is removed.");
    assert_eq!(rig.status().volumes.len(), 1);
    // Enter in the field of the token sends nothing away.
    browser.value(
        "var sends = null; document.getElementById('token').focus(); \
         addEventListener('submit', event => sends = !event.defaultPrevented)",
    );
    browser.press("Enter");
    browser.wait_for("sends !== null");
    assert_eq!(browser.value("sends"), false);
    let of_forms: Vec<_> =
        browser.complaints.iter().filter(|it| it.contains("not contained in a form")).collect();
    assert!(of_forms.is_empty(), "{of_forms:?}");
    // The page of another server, which the browser sends as it is asked to.
    browser.open(&format!("http://127.0.0.1:{}/", other_page()));
    browser.wait_for("document.title === 'other'");
    let attack = format!(
        "fetch('http://{}/stop', {{ method: 'POST', mode: 'no-cors', \
         headers: {{ 'Content-Type': 'text/plain' }} }})\
         .then(() => document.title = 'sent', () => document.title = 'sent')",
        rig.admin_tcp
    );
    browser.value(&format!("void {attack}"));
    browser.wait_for("document.title === 'sent'");
    assert_eq!(rig.status().volumes.len(), 1, "it serves on");
    rig.end();
}

/// Serves an empty page to one browser, on a port of its own.
fn other_page() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // A browser may open a connection on which it asks for nothing yet.
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request); // whatever it asks for
                let page = "<title>other</title>";
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\
                     Connection: close\r\n\r\n{page}",
                    page.len()
                );
                let _ = stream.write_all(answer.as_bytes()); // it may have gone
            });
        }
    });
    port
}

#[test]
fn the_page_shows_a_server_and_survives_its_restart() {
    if !is_installed(&[PROGRAM]) {
        return;
    }
    let rig = serve("127.0.0.1:0");
    load(&rig);
    let address = rig.admin_tcp.clone();
    let mut browser = Browser::start();
    browser.open(&format!("http://{address}/"));
    browser.wait_for("document.querySelectorAll('.chart path').length > 10");
    (0..4).for_each(|_| load(&rig));
    let text = |browser: &mut Browser, id: &str| {
        browser.value(&format!("document.getElementById('{id}').innerText")).to_string()
    };
    assert!(text(&mut browser, "state").contains("Healthy"));
    assert!(text(&mut browser, "about").contains("write back"));
    for shown in ["Reads", "Dirty", "Write latency"] {
        assert!(text(&mut browser, "tiles").contains(shown), "{shown}");
    }
    assert!(text(&mut browser, "answered").contains("memory"));
    assert!(text(&mut browser, "blocks").contains("4.00 KiB"));
    assert!(text(&mut browser, "devices").contains("healthy"));
    // Both tell of recent reads, so that the load goes on meanwhile.
    patiently(|| {
        load(&rig);
        let shown = "document.querySelectorAll('#what-if tbody tr').length === 4 && \
             document.querySelectorAll('#p-star .mark').length >= 3";
        (browser.value(shown) == true).then_some(())
    });
    assert!(text(&mut browser, "what-if").contains("four times"));
    assert_eq!(browser.value("document.getElementById('adaptation').hidden"), true, "it is LRU");
    // The name is text, in the table and in the legends, and nothing has run.
    assert!(text(&mut browser, "volumes").contains(NAME));
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    // The keyboard reads a moment of the first chart.
    browser.value("document.querySelector('.chart').focus()");
    browser.press("ArrowLeft");
    browser.wait_for("/\\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('.when').innerText)");
    let label = browser.value("document.querySelector('.chart').getAttribute('aria-label')");
    assert!(label.as_str().unwrap().starts_with("Requests, "), "{label}");
    browser.press("Escape");
    browser.value("document.activeElement.blur()");
    browser.value(AN_HOUR);
    for (width, theme) in
        [360, 1280, 3840].into_iter().flat_map(|width| [(width, "light"), (width, "dark")])
    {
        browser.show_as(width, theme);
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= u64::from(width), "{width}: {wide}");
        assert_eq!(browser.overflowing(), json!([]), "at {width}");
        // All of a legend is within its chart.
        let whole = "[...document.querySelectorAll('.legend li')].every(item => \
             item.scrollWidth <= item.clientWidth && \
             item.getBoundingClientRect().right <= innerWidth)";
        assert_eq!(browser.value(whole), true, "a legend is cut at {width}");
        if let Some(folder) = std::env::var_os("FLOE_SCREENSHOTS") {
            let file = std::path::Path::new(&folder).join(format!("{width}-{theme}.png.base64"));
            std::fs::write(file, browser.screenshot()).unwrap();
        }
    }
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // 15 charts, and two tables that may scroll.
    assert_eq!(browser.walk_by_tab(), 17);
    assert_eq!(browser.nameless(), [""; 0]);

    // A hit in memory is one of both, and the legend says so.
    let legends = text(&mut browser, "charts");
    assert!(legends.contains("reads, memory alone"), "{legends}");
    assert!(legends.contains("reads, memory or cache"), "{legends}");

    let opacity = "Number(getComputedStyle(document.getElementById('tiles')).opacity)";
    assert_eq!(browser.value(opacity), 1);
    assert_eq!(browser.value("document.getElementById('now-title').innerText[0]"), "N");
    rig.end();
    browser.wait_for("document.getElementById('state').innerText.startsWith('No connection')");
    // All that is shown is of the past, and says so.
    assert_eq!(browser.value(&format!("{opacity} < 0.6")), true);
    browser.wait_for("/Last seen.* s ago, at /.test(document.getElementById('now').innerText)");
    browser.wait_for("document.getElementById('devices-title').innerText.endsWith('s ago')");
    // The outage grows at the right end of each chart.
    let every_chart = |what: &str| {
        format!("[...document.querySelectorAll('svg[tabindex]')].every((it, at) => {what})")
    };
    browser.wait_for(&every_chart("it.querySelector('.gap') !== null"));
    let breaks = "const breaks = () => [...document.querySelectorAll('svg[tabindex]')].map(it => \
         it.querySelector('path').getAttribute('d').split('M').length); var before = breaks();";
    browser.value(breaks);
    let before = browser.value("latest.points.length");
    let rig = serve(&address);
    browser.wait_for("document.getElementById('state').innerText === 'Healthy'");
    patiently(|| {
        load(&rig);
        (browser.value(&format!("latest.points.length > {before} + 1")) == true).then_some(())
    });
    browser.wait_for(&format!("{opacity} === 1 && !isStale()"));
    // It is a gap afterwards, though it was shorter than four intervals.
    assert_eq!(browser.value("gapsOf(latest.points, lastPoint().at).length >= 1"), true);
    // A chart of latencies goes on with the next interval that has requests.
    patiently(|| {
        load(&rig);
        browser.value("drawCharts()");
        (browser.value(&every_chart("breaks()[at] > before[at]")) == true).then_some(())
    });
    assert_eq!(browser.value(&every_chart("it.querySelector('.gap') !== null")), true);

    // The page tells of an unclean end, and of a server that has stopped but keeps its connections.
    assert_eq!(text(&mut browser, "recovery"), "\"\"");
    // In one step: the page's next answer from the server overwrites what is set here.
    let told = browser.value(
        "latest.status.opened = { ended: 'unclean', dirty_bytes: 17 << 20, valid_bytes: 1 << 30 }; \
         showRecovery(latest.status); document.getElementById('recovery').innerText",
    );
    let told = told.to_string();
    assert!(told.contains("unclean end: 17.0 MiB of dirty data recovered"), "{told}");
    let stopped = "Date.now = () => performance.timeOrigin + performance.now() + 60e3; showAge(); \
         [isStale(), document.getElementById('state').innerText]";
    let stopped = browser.value(stopped);
    assert_eq!(stopped[0], true);
    assert!(stopped[1].as_str().unwrap().contains("nothing new"), "{stopped}");
    rig.end();
}

#[test]
fn the_page_shows_the_settings_of_a_policy_that_chooses_them() {
    if !is_installed(&[PROGRAM]) {
        return;
    }
    let mut setup = Setup::new(WriteMode::Back).evict("auto");
    setup.config.limits.sample_interval = Duration::from_millis(100);
    let rig = setup.start().unwrap();
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", rig.admin_tcp));
    patiently(|| {
        load(&rig);
        let rows = "document.querySelectorAll('#adaptation tbody tr').length";
        (browser.value(rows) == 8).then_some(())
    });
    // In one step: the page's next answer from the server overwrites what is set here.
    let of = |browser: &mut Browser, switches: &str, uses: &str| {
        let told = browser.value(&format!(
            "(() => {{ const [tier] = latest.status.tiers; const {{ settings }} = tier.adaptation; \
             Object.assign(tier.adaptation, {{ switches: {switches} }}); \
             tier.seconds_since_switch = 720; \
             settings.forEach((it, at) => it.orders = {uses}[at] ?? 0); \
             showAdaptation(latest.status); return byId('adaptation').innerText; }})()"
        ));
        told.as_str().unwrap().to_owned()
    };
    let told = of(&mut browser, "0", "[4]");
    assert!(
        told.contains("in use is qd-clock. It has not been changed since the start."),
        "{told}"
    );
    let told = of(&mut browser, "3", "[1, 0, 3]");
    let expected = "in use is qd-clock:small=0.2:ghosts=1, in 3 of 4 shards. Settings were changed \
                    3 times, last 12 min ago.";
    assert!(told.contains(expected), "{told}");
    assert!(told.contains("1 of 4"), "{told}");
    for (width, theme) in
        [360, 1280, 2560].into_iter().flat_map(|width| [(width, "light"), (width, "dark")])
    {
        browser.show_as(width, theme);
        of(&mut browser, "3", "[1, 0, 3]");
        assert_eq!(browser.overflowing(), json!([]), "at {width}");
        if let Some(folder) = std::env::var_os("FLOE_SCREENSHOTS") {
            let file =
                std::path::Path::new(&folder).join(format!("auto-{width}-{theme}.png.base64"));
            std::fs::write(file, browser.screenshot()).unwrap();
        }
    }
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    rig.end();
}
