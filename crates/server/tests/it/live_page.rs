//! The live page in a browser. `FLOE_SCREENSHOTS` names a folder that gets images of it.

use std::time::Duration;

use floe_block::{MemoryWrite, WriteMode};
use floe_server::admin::AdminAddress;
use floe_testkit::is_installed;

use crate::browser::{Browser, PROGRAM};
use crate::rig::{Rig, Setup};

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
        dirty_bytes: 5e6 * wave(step, 2) }],
      volumes: now.volumes.map((it, more) => ({ ...it, reads: 2000 * wave(step, more), writes: 90,
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
    load(&rig);
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
        [360, 1024, 2560].into_iter().flat_map(|width| [(width, "light"), (width, "dark")])
    {
        browser.show_as(width, theme);
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= u64::from(width), "{width}: {wide}");
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

    rig.end();
    browser.wait_for("document.getElementById('state').innerText.startsWith('No connection')");
    let before = browser.value("latest.points.length");
    let rig = serve(&address);
    browser.wait_for("document.getElementById('state').innerText === 'Healthy'");
    browser.wait_for(&format!("latest.points.length > {before}"));
    rig.end();
}
