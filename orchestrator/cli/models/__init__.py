"""Commands about a model beside its runs."""
