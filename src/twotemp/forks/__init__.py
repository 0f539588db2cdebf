"""The study behind `twotemp forks`: find fork tokens in samples and measure what a policy does to them."""
