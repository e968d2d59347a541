//! Tests that need a browser. `make test-hosts` runs them, `make test` leaves them out.

mod browser;
mod live_page;
