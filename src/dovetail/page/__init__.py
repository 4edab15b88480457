"""The explain page: one HTML file that shows what a report says, with no network and no server."""
